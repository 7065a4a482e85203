"""Trials of the figures: when a run is looked at, and choosing a setting on tuning seeds. Never imports torch."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

EVERY = 20  # steps between evaluations on the digits; they are not counted


def combinations(space: Mapping[str, Sequence[float]]) -> list[dict[str, float]]:
    """All settings of a space, ``lr`` varying slowest where it stands first."""
    return [dict(zip(space, values, strict=True)) for values in itertools.product(*space.values())]


def powers(anchor: float, factor: float, first: int, count: int) -> list[float]:
    """anchor · factor^k for k = first, ..., first + count − 1, to five digits."""
    return [float(f"{anchor * factor**k:.5g}") for k in range(first, first + count)]


def best_trial(steps: Sequence[Sequence[float]], final: Sequence[Sequence[float]], *, reliable: bool = False) -> int:
    """The trial of the least median steps; where several miss, of the largest share that reached, then least loss.

    Args:
        steps: By trial and tuning seed; inf is a miss.
        final: Loss at the end, by trial and seed; not finite counts as inf.
        reliable: Whether the share that reached comes first: where starts differ so much that a median would reward
            the setting that is fast from most and fails from the others.
    """

    def rank(i: int) -> tuple[float, ...]:
        reached = sum(math.isfinite(s) for s in steps[i]) / len(steps[i])
        losses = [x if math.isfinite(x) else math.inf for x in final[i]]
        order = statistics.median(steps[i]), -reached, statistics.median(losses)
        return (-reached, *order) if reliable else order

    return min(range(len(steps)), key=rank)


def at_edge(space: Mapping[str, Sequence[float]], chosen: Mapping[str, Any]) -> bool:
    """Whether the learning rate is the first or the last of its grid."""
    return chosen["lr"] in (space["lr"][0], space["lr"][-1])
