r"""What h becomes when the gradient in A-GNB is an SPSA estimate: closed forms for Gaussian directions.

g is fixed, S = |g|², c = zᵀg, and h_j = c² z_j² (times B). Exact for every loss in the limit of a small probe radius,
on quadratics for every radius. All functions take and return exact numbers or arrays alike.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def mean(square: Any, total: Any) -> Any:
    """E[c² z_j²] = S + 2 g_j², from g_j² and S."""
    return total + 2 * square


def variance(square: Any, total: Any) -> Any:
    """Var(c² z_j²) = 8S² + 68 S g_j² + 20 g_j⁴."""
    return 8 * total**2 + 68 * total * square + 20 * square**2


def difference_variance(first: Any, second: Any, total: Any) -> Any:
    """Var(c²(z_j² − z_k²)) = 12S² + 48 S(g_j² + g_k²) + 20(g_j² − g_k²)², from the two squares and S."""
    return 12 * total**2 + 48 * total * (first + second) + 20 * (first - second) ** 2


def contrast(squares: Array) -> Array:
    """The weights w_j = g_j² − mean: of all contrasts the one that follows the truth."""
    return squares - squares.mean()


def contrast_mean(squares: Any, weights: Any) -> Any:
    """E Σ w_j h_j = 2 Σ w_j g_j² for weights of sum zero."""
    return 2 * (weights * squares).sum()


def contrast_variance(squares: Any, weights: Any) -> Any:
    r"""Var Σ w_j h_j for weights of sum zero.

    With z = u ĝ + z⊥, ĝ = g/|g|, α = Σ w_j ĝ_j², b = Σ w_j² ĝ_j² and u independent of z⊥: Σ w_j z_j² is
    α u² + 2u β·z⊥ + z⊥ᵀWz⊥ with |β|² = b − α², tr W⊥ = −α, tr W⊥² = Σ w_j² − 2b + α².
    """
    total = squares.sum()
    alpha = (weights * squares).sum() / total
    b = (weights**2 * squares).sum() / total
    rest = (weights**2).sum() - 2 * b + alpha**2
    fourth = 105 * alpha**2 + 60 * (b - alpha**2) + 3 * (alpha**2 + 2 * rest) - 30 * alpha**2
    return total**2 * (fourth - 4 * alpha**2)


def correlation(squares: Array, num_estimates: float) -> float:
    """Correlation over the coordinates of the mean of K estimates with g_j², to leading order in 1/d.

    Signal 2 g_j² and, given c, independent noise of variance 2c⁴, on average 6S²: (1 + 6S²/(4K Var g_j²))^(−1/2).
    """
    return float((1 + 6 * squares.sum() ** 2 / (4 * num_estimates * squares.var())) ** -0.5)


def num_effective(beta2: Any) -> Any:
    """How many independent estimates a stationary exponential average is worth: (1 + β2)/(1 − β2)."""
    return (1 + beta2) / (1 - beta2)
