r"""The noise of per-example gradients, from slopes that a step of groups has anyway.

Examples of a group share its direction z, so that their slopes c_i = zᵀ∇L_i have, with E[z zᵀ] = I and examples drawn
independently, E[c_i c_j] = |ḡ|² for i ≠ j and E[c_i²] = |ḡ|² + tr Σ: ḡ is the mean gradient, Σ the covariance of one
example's. The group's slope alone, mean of m of them, has E[c²] = |ḡ|² + tr Σ / m, from which the two cannot be told.
See theory/proofs/algorithm/groups.md.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

WINDOW = 200  # steps
QUANTILE = 1.96  # of a 95 % interval
WORTH = 1.05  # more groups are taken until the rest would make a step's second moment less by a factor below this


class NoiseEstimate(NamedTuple):
    """ν = tr Σ / |ḡ|² over a window, in examples: at a batch of ν the noise is as large as the gradient.

    Attributes:
        ratio: The ratio of the two means; infinite where that of |ḡ|² is not positive.
        low: Lower end of the 95 % interval (Fieller's, of a ratio of means), at least 0.
        high: Upper end; infinite where |ḡ|² is not told from 0.
        steps: How many the window has.
    """

    ratio: float
    low: float
    high: float
    steps: int


class GroupSlopes(NamedTuple):
    """Slopes of a step's examples, group by group.

    Attributes:
        means: Of each group, float64, shape (groups,).
        squares: The means of their squares, likewise.
        examples: Of a group.
    """

    means: Tensor
    squares: Tensor
    examples: int


class GradientNoise:
    """The last steps' estimates of |ḡ|² and tr Σ, each unbiased where there were two examples a group."""

    def __init__(self, window: int = WINDOW) -> None:
        self.moments: deque[tuple[float, float]] = deque(maxlen=window)
        self.batch_size = 0

    def as_json(self) -> dict[str, Any]:
        """What is kept, in plain numbers."""
        return {"batch_size": self.batch_size, "moments": [list(moments) for moments in self.moments]}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> GradientNoise:
        """What `as_json` gave; nothing yet without."""
        noise = cls()
        noise.batch_size = int(kept.get("batch_size", 0))
        noise.moments.extend((float(a), float(b)) for a, b in kept.get("moments", ()))
        return noise

    def add(self, slopes: GroupSlopes) -> None:
        """Take in a step's slopes."""
        self.batch_size = slopes.means.numel() * slopes.examples
        if slopes.examples > 1:
            self.moments.append(slope_moments(slopes))

    def estimate(self) -> NoiseEstimate | None:
        """ν of the window; None without two steps that had pairs."""
        return noise_ratio(list(self.moments)) if len(self.moments) > 1 else None

    def summary(self, groups: int) -> dict[str, Any]:
        """``batch_size``, ``groups``, ν with its interval, and the ``gain`` over one group; plain numbers or None."""
        found, batch = self.estimate(), self.batch_size
        told: dict[str, Any] = {"batch_size": batch, "groups": groups, "steps": len(self.moments)}
        if found is None:
            return {**told, "noise": None}
        finite = {k: v if math.isfinite(v) else None for k, v in zip(("noise", "low", "high"), found, strict=False)}
        best = {f"gain_of_{g}": gain(g, batch, found.ratio) for g in divisors(batch)}
        return {**told, **finite, **best, "suggested_groups": choose_groups(batch, found)}


def slope_moments(slopes: GroupSlopes) -> tuple[float, float]:
    r"""Unbiased |ḡ|² and tr Σ from groups of m > 1 examples: the mean c_i c_j over i ≠ j; the mean c_i² less that."""
    means, squares, m = slopes
    pairs = ((m * means.square() - squares) / (m - 1)).mean().item()
    return pairs, squares.mean().item() - pairs


def noise_ratio(moments: Sequence[tuple[float, float]]) -> NoiseEstimate:
    """ν from at least two steps' moments: all values that the mean of (tr Σ − ν |ḡ|²) does not tell from 0."""
    n = len(moments)
    a, b = (math.fsum(column) / n for column in zip(*moments, strict=True))

    def covariance(i: int, j: int) -> float:
        means = a, b
        return math.fsum((m[i] - means[i]) * (m[j] - means[j]) for m in moments) / (n * (n - 1))

    q = QUANTILE**2
    first, mixed, last = a * a - q * covariance(0, 0), a * b - q * covariance(0, 1), b * b - q * covariance(1, 1)
    ratio = b / a if a > 0 else math.inf
    if first <= 0 or a <= 0:  # |ḡ|² is not told from 0
        root = math.sqrt(max(0.0, mixed * mixed - first * last))
        low = last / (mixed + root) if mixed + root > 0 else 0.0
        return NoiseEstimate(ratio, min(max(0.0, low), ratio), math.inf, n)
    root = math.sqrt(max(0.0, mixed * mixed - first * last))
    return NoiseEstimate(max(0.0, ratio), max(0.0, (mixed - root) / first), max(0.0, (mixed + root) / first), n)


def gain(groups: int, batch_size: int, noise: float) -> float:
    r"""(1 + ν/B) / (1/G + ν/B): how many times fewer forwards G groups need than one, at each's best step size.

    Also by which the best step size is larger. Of many parameters; see theory/proofs/algorithm/groups.md.
    """
    if math.isinf(noise):
        return 1.0
    return (1.0 + noise / batch_size) / (1.0 / groups + noise / batch_size)


def divisors(number: int) -> list[int]:
    """All of them, the least first."""
    return [k for k in range(1, number + 1) if number % k == 0]


def choose_groups(batch_size: int, found: NoiseEstimate | None) -> int:
    """The fewest groups of one size that are nearly as good as the most with two examples each.

    The most where the noise is not known. More groups never need more forwards, so only their own small cost and that
    noise can be told no longer speak against them; the lower end of the interval is taken, which asks for more groups.
    """
    choices = [g for g in divisors(batch_size) if 2 * g <= batch_size] or [1]
    if found is None:
        return choices[-1]
    best = gain(choices[-1], batch_size, found.low)
    return next(g for g in choices if gain(g, batch_size, found.low) * WORTH >= best)
