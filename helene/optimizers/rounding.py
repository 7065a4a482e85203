"""Noticing that 16-bit weights do not move."""

from __future__ import annotations

import warnings
from typing import Any

from torch import Tensor


class RoundingWatch:
    """Counts the 16-bit weights that a nonzero update did not move, in one step."""

    def __init__(self) -> None:
        self.lost: Any = 0
        self.updated: Any = 0

    def note(self, old: Tensor, new: Tensor, rounded: Tensor) -> None:
        """Take in a chunk: before, after in wide arithmetic, after as stored."""
        wanted = new != old
        self.updated = self.updated + wanted.sum()
        self.lost = self.lost + (wanted & (rounded == old)).sum()

    def warn(self, step: int, stacklevel: int) -> bool:
        """Warn if more than half of the updates were lost, and say whether it did."""
        share = float(self.lost) / max(1.0, float(self.updated))
        if share > 0.5:
            warnings.warn(
                f"step {step} lost {share:.0%} of the updates of 16-bit weights to rounding: they are below half a "
                "unit in the last place; rounding='stochastic' keeps them in the mean, float32 weights keep them",
                stacklevel=stacklevel + 1,
            )
        return share > 0.5
