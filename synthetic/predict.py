r"""What the two controls must give, from theory alone: no code of the simulator, no torch, other random numbers.

*Quadratics.* In a block of m coordinates with one eigenvalue, SPSA sees the displacement u only through s = ‖u‖²: with
z = (along u, across it), c = Σ λ √s ξ and s ← (√s − η c ξ)² + η² c² χ²_{m−1}, ξ standard normal. So the loss of MeZO
is a Markov chain of one number per eigenvalue, and that of one direction per layer of one number per eigenvalue and
layer: exact in law at a cost that does not depend on m.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
STEP_SIZES = tuple(2.0 ** (k / 6.0) for k in range(-3, 10))


def quadratic_counts(
    layers: int,
    width: int,
    levels: Sequence[float],
    per_layer: bool,
    target: float,
    num_seeds: int,
    seed: int = 0,
    step_sizes: Sequence[float] = STEP_SIZES,
    race: float = 1.5,
) -> Array:
    r"""Steps to the target of the tuned control on n equal layers, each with ``levels`` shared evenly.

    Args:
        layers: n.
        width: w, a multiple of the number of levels.
        levels: Distinct eigenvalues of a layer.
        per_layer: One direction per layer instead of one for all.
        target: Relative gap.
        num_seeds: Independent runs.
        seed: Of this module's own generator.
        step_sizes: q, the step size times tr H + 2 λ_max (of a layer, with one direction per layer).
        race: All runs end at this multiple of the best median.

    Returns:
        Counts at the step size with the least median, shape (num_seeds,), inf beyond the race.
    """
    lam = np.asarray(levels, float)
    count = width / lam.size
    groups, size = (layers, count) if per_layer else (1, layers * count)
    eta = np.asarray(step_sizes) / (size * lam.sum() + 2.0 * lam.max())
    rng = np.random.default_rng([seed, layers, width, per_layer])
    s = np.full((num_seeds, eta.size, groups, lam.size), size)
    start = (lam * size).sum() * groups
    counts = np.full((num_seeds, eta.size), np.inf)
    rate, t, end = eta[:, None, None], 0, np.inf
    while t < end and np.isinf(counts).any():
        xi = rng.standard_normal((num_seeds, 1, groups, lam.size))
        across = rng.chisquare(size - 1.0, xi.shape) if size > 1 else np.zeros_like(xi)
        root = np.sqrt(s)
        move = rate * (lam * root * xi).sum(-1, keepdims=True)
        s = np.minimum((root - move * xi) ** 2 + move**2 * across, 1e12)
        t += 1
        hit = ((lam * s).sum((-1, -2)) <= target * start) & np.isinf(counts)
        if hit.any():
            counts[hit] = t
            medians = np.median(counts, axis=0)
            end = min(end, np.ceil(race * medians.min()))
    return counts[:, np.median(counts, axis=0).argmin()]
