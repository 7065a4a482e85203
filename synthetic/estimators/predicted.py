r"""What h from SPSA gradients must tell of single coordinates: `theory/proofs/curvature/curvature_from_forwards.md`.

With S the sum of the true diagonal and w_j = d · (diagonal)_j / S, the average of K estimates is, to leading order in
1/d, a common part plus 2 w_j S/d plus independent noise of variance 6 S²/K. Never imports torch.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

Array = NDArray[np.float64]

COORDINATES = 400  # more say the same: the law of w is what enters


def num_effective(beta2: float) -> float:
    """Independent estimates that an exponential average is worth: K = (1 + β2)/(1 − β2)."""
    return (1.0 + beta2) / (1.0 - beta2)


def squared_correlation(d: int, spread: float, num_estimates: float) -> float:
    """With the truth, over the coordinates; ``spread`` is ω, the standard deviation of w."""
    return 1.0 / (1.0 + 3.0 * d**2 / (2.0 * spread**2 * num_estimates))


def shares(decades: float, count: int) -> Array:
    """w for a diagonal spread evenly over so many decades."""
    diagonal = np.geomspace(1.0, 10.0**-decades, count)
    return diagonal / diagonal.mean()


def rank_correlation(d: int, decades: float, num_estimates: float) -> float:
    """Mean of Spearman's correlation with the truth for the same."""
    w = shares(decades, min(d, COORDINATES))
    noise = d * math.sqrt(3.0 / num_estimates)  # of a difference of two, in units of the signal 2 w_j S/d
    above = ndtr((w[:, None] - w[None, :]) / noise)
    ranks, expected = np.arange(len(w))[::-1], above.sum(axis=1)
    return float(((ranks - ranks.mean()) @ expected) / ((ranks - ranks.mean()) @ (ranks - ranks.mean())))
