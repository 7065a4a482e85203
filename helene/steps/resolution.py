"""Noticing that losses are too coarse to tell a slope."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch

WINDOW = 16  # pairs
MOST = 12  # of them that may differ by rounding alone
COARSE = (
    "the loss is in {}, where those of a pair are equal or a unit in the last place apart, so that slopes are "
    "rounding; compute it in float32 (of logits.float())"
)


class ResolutionWatch:
    """Counts the pairs of losses that differ by one unit in the last place of their dtype or less."""

    def __init__(self) -> None:
        self._pairs = self._coarse = 0
        self._dtype = torch.float32

    def note(self, losses: Sequence[float], others: Sequence[float], dtype: torch.dtype) -> None:
        """Take in the losses of pairs, and the dtype that the closure gave them in."""
        unit = torch.finfo(dtype).eps
        pairs = list(zip(losses, others, strict=True))
        self._coarse += sum(abs(a - b) <= unit * max(abs(a), abs(b)) for a, b in pairs)
        self._pairs += len(pairs)
        self._dtype = dtype

    def warn(self, stacklevel: int) -> bool:
        """At the end of a window, warn if hardly a pair told a slope, and say whether it did."""
        if self._pairs < WINDOW:
            return False
        pairs, coarse = self._pairs, self._coarse
        self._pairs = self._coarse = 0
        if coarse * WINDOW <= MOST * pairs:
            return False
        dtype = str(self._dtype).removeprefix("torch.")
        warnings.warn(
            f"{coarse} of {pairs} pairs of losses differ by at most one unit in the last place of {dtype}, so their "
            "slopes are rounding; compute the loss in a wider dtype (of logits.float()), or take a larger eps; "
            "if the loss has grown, lr is too large: take a smaller one",
            stacklevel=stacklevel + 1,
        )
        return True
