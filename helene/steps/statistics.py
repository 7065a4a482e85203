"""Numbers about a run that cost no forward."""

from __future__ import annotations

import copy
import math


class Statistics:
    """Running count, mean, standard deviation and extremes of the measured scalars (Welford's update)."""

    def __init__(self) -> None:
        self.count, self.mean, self._squares = 0, 0.0, 0.0
        self.least, self.greatest, self.last = math.inf, -math.inf, math.nan

    def after(self, values: list[float]) -> Statistics:
        """What they are once the scalars of one more step are taken in; these stay."""
        found = copy.copy(self)
        found.add(values)
        return found

    def add(self, values: list[float]) -> None:
        """Take in the scalars of one step."""
        for value in values:
            self.count += 1
            delta = value - self.mean
            self.mean += delta / self.count
            self._squares += delta * (value - self.mean)
            self.least, self.greatest, self.last = min(self.least, value), max(self.greatest, value), value

    def summary(self) -> dict[str, float]:
        """``count``, ``mean``, ``std`` (over count − 1), ``min``, ``max``, ``last``."""
        std = math.sqrt(self._squares / (self.count - 1)) if self.count > 1 else math.nan
        return {
            "count": self.count,
            "mean": self.mean,
            "std": std,
            "min": self.least,
            "max": self.greatest,
            "last": self.last,
        }


def expected_cosine(dimension: int, num_directions: int = 1) -> float:
    r"""Mean cosine between the gradient and its projection on a random subspace of that many directions.

    Γ((q+1)/2) Γ(d/2) / (Γ(q/2) Γ((d+1)/2)), about √(q/d): the projection's squared share of the gradient's length is
    Beta(q/2, (d−q)/2). For q = 1 this is the mean |cosine| of the estimate c z itself; for q > 1 the estimate differs
    from the projection only as far as its directions are not orthogonal.
    """
    if num_directions >= dimension:
        return 1.0
    q, d = num_directions, dimension
    return math.exp(math.lgamma((q + 1) / 2) + math.lgamma(d / 2) - math.lgamma(q / 2) - math.lgamma((d + 1) / 2))
