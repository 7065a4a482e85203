r"""What the two controls must give, from theory alone: no code of the simulator, no torch, other random numbers.

*Quadratics.* In a block of m coordinates with one eigenvalue, SPSA sees the displacement u only through s = ‖u‖²: with
z = (along u, across it), c = Σ λ √s ξ and s ← (√s − η c ξ)² + η² c² χ²_{m−1}, ξ standard normal. So the loss of MeZO
is a Markov chain of one number per eigenvalue, and that of one direction per layer of one number per eigenvalue and
layer: exact in law at a cost that does not depend on m.

*Log-cosh.* As d grows the coordinates become independent and follow du = −q tanh(u) dτ + q √(E tanh² u) dW, τ = t / d,
q the step size times d (the mean field). At finite d counts are larger by the factor by which they are on an isotropic
quadratic, where the chain above is exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_banded

Array = NDArray[np.float64]
STEP_SIZES = tuple(2.0 ** (k / 6.0) for k in range(-3, 9))
_TIME_STEP = 0.04


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


@cache
def log_cosh_time(distance: float, target: float) -> float:
    r"""Rescaled time τ = t / d to the target in the mean field, at the best of the step sizes.

    The density of u obeys ∂p/∂τ = ∂(q tanh(u) p + q² G/2 ∂p/∂u)/∂u, G = E tanh² u: Crank-Nicolson in time, central
    differences in u, G extrapolated to the middle of a step.
    """
    return min(_mean_field_time(q, distance, target) for q in STEP_SIZES)


def _mean_field_time(q: float, distance: float, target: float) -> float:
    cell = distance / 40.0
    edge = distance + 6.0 * q * min(1.0, distance)
    faces = np.arange(-np.ceil(edge / cell), np.ceil(edge / cell) + 1) * cell
    u = 0.5 * (faces[1:] + faces[:-1])
    p = np.exp(-0.5 * ((u - distance) / cell) ** 2)
    p /= p.sum()
    slope2, loss, drift = np.tanh(u) ** 2, _log_cosh(u), -q * np.tanh(faces[1:-1])
    goal, gap, time = target * float(_log_cosh(np.asarray(distance))), p @ loss, 0.0
    g = g_before = p @ slope2
    h = _TIME_STEP
    while gap > goal and time < 50.0:
        spread = 0.5 * q * q * (1.5 * g - 0.5 * g_before) / cell
        left, right = 0.5 * drift + spread, 0.5 * drift - spread  # flux through a face: left p_k + right p_{k+1}
        diagonal = np.zeros_like(p)
        diagonal[:-1] -= left
        diagonal[1:] += right
        upper, lower, diagonal = -right / cell, left / cell, diagonal / cell
        moved = p * (1.0 + 0.5 * h * diagonal)
        moved[:-1] += 0.5 * h * upper * p[1:]
        moved[1:] += 0.5 * h * lower * p[:-1]
        bands = np.zeros((3, p.size))
        bands[0, 1:], bands[1], bands[2, :-1] = -0.5 * h * upper, 1.0 - 0.5 * h * diagonal, -0.5 * h * lower
        p = solve_banded((1, 1), bands, moved, overwrite_ab=True, overwrite_b=True, check_finite=False)
        before, gap = gap, p @ loss
        g, g_before = p @ slope2, g
        time += h
    if gap > goal:
        return math.inf
    return time - h * math.log(goal / gap) / math.log(before / gap)  # the decay inside a step is exponential


def _log_cosh(u: Array) -> Array:
    return np.abs(u) + np.log1p(np.exp(-2.0 * np.abs(u))) - np.log(2.0)
