"""Noticing that 16-bit weights do not move."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor


class RoundingWatch:
    """Counts the 16-bit weights that a nonzero update did not move, in one step."""

    def __init__(self) -> None:
        self._counts: dict[torch.device, Any] = {}  # lost and updated, where the weights are

    def note(self, old: Tensor, new: Tensor, rounded: Tensor) -> None:
        """Take in a chunk: before, after in wide arithmetic, after as stored."""
        wanted = new != old
        counts = torch.stack([(wanted & (rounded == old)).sum(), wanted.sum()])
        self._counts[old.device] = self._counts.get(old.device, 0) + counts

    def warn(self, step: int, stacklevel: int) -> bool:
        """Warn if more than half of the updates were lost, and say whether it did."""
        lost, updated = (
            sum(column) for column in zip((0, 0), *(c.tolist() for c in self._counts.values()), strict=True)
        )
        share = lost / max(1, updated)
        if share > 0.5:
            warnings.warn(
                f"step {step} lost {share:.0%} of the updates of 16-bit weights to rounding: they are below half a "
                "unit in the last place; rounding='stochastic' keeps them in the mean, float32 weights keep them",
                stacklevel=stacklevel + 1,
            )
        return share > 0.5
