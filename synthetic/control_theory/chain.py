r"""What the two controls must give, from theory alone: no code of the simulator, no torch, other random numbers.

*Quadratics.* In a block of m coordinates with one eigenvalue, SPSA sees the displacement u only through s = ‖u‖²: with
z = (along u, across it), c = Σ λ √s ξ and s ← (√s − η c ξ)² + η² c² χ²_{m−1}, ξ standard normal. So the loss of MeZO
is a Markov chain of one number per eigenvalue, and that of one direction per layer of one number per eigenvalue and
layer: exact in law at a cost that does not depend on m.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
STEP_SIZES = tuple(2.0 ** (k / 6.0) for k in range(-3, 10))


def chain_counts(
    eigenvalues: Array,
    sizes: Array,
    squares: Array,
    per_layer: bool,
    target: float,
    num_seeds: int,
    seed: int = 0,
    step_sizes: Sequence[float] = STEP_SIZES,
    race: float = 1.5,
) -> Array:
    r"""Steps to the target on a quadratic whose coordinates fall into blocks, shape (layers, blocks in a layer).

    Args:
        eigenvalues: λ of each block.
        sizes: m of each block.
        squares: ‖u‖² of each block at the start.
        per_layer: One direction per layer instead of one for all.
        target: Relative gap.
        num_seeds: Independent runs.
        seed: Of this module's own generator.
        step_sizes: q, the step size times tr H + 2 λ_max (of a layer, with one direction per layer).
        race: All runs end at this multiple of the best median.

    Returns:
        Counts, shape (num_seeds, step sizes), inf beyond the race; the step sizes of a run share their directions.
    """
    lam = eigenvalues
    layer_anchors = (lam * sizes).sum(1) + 2.0 * lam.max(1)
    anchor = layer_anchors.max() if per_layer else (lam * sizes).sum() + 2.0 * lam.max()
    rate = (np.asarray(step_sizes) / anchor)[:, None, None]
    rng = np.random.default_rng([seed, *map(int, np.asarray(lam.shape)), int(sizes.sum()), per_layer])
    s = np.tile(squares, (num_seeds, len(step_sizes), 1, 1))
    start = (lam * squares).sum()
    counts = np.full((num_seeds, len(step_sizes)), np.inf)
    shared = -1 if per_layer else (-1, -2)
    t, end = 0, np.inf
    while t < end and np.isinf(counts).any():
        xi = rng.standard_normal((num_seeds, 1, *lam.shape))
        across = rng.chisquare(np.maximum(sizes - 1.0, 1e-9), xi.shape) * (sizes > 1.0)
        root = np.sqrt(s)
        move = rate * (lam * root * xi).sum(shared, keepdims=True)
        s = np.minimum((root - move * xi) ** 2 + move**2 * across, 1e12)
        t += 1
        hit = ((lam * s).sum((-1, -2)) <= target * start) & np.isinf(counts)
        if hit.any():
            counts[hit] = t
            end = min(end, np.ceil(race * np.median(counts, axis=0).min()))
    return counts


def drawn_counts(
    slope: Callable[[Array], Array],
    gap: Callable[[Array], Array],
    x0: Array,
    layers: Sequence[slice] | None,
    anchor: float,
    target: float,
    race: float = 1.5,
) -> Array:
    r"""Counts where there is no smaller chain: x ← x − η z (zᵀ∇L) drawn directly.

    Args:
        slope: ∇L, on (..., d).
        gap: L above its minimum, on (..., d), up to a factor.
        x0: One start per run, shape (runs, d).
        layers: Where each layer lies, with one direction per layer; None with one for all.
        anchor: The step size is q over this, q one of `STEP_SIZES`.
        target: Relative gap.
        race: As in `chain_counts`.

    Returns:
        As `chain_counts`, shape (runs, step sizes).
    """
    rng = np.random.default_rng([0, *x0.shape, layers is not None])
    eta = (np.asarray(STEP_SIZES) / anchor)[:, None]
    x = np.repeat(x0[:, None, :], len(STEP_SIZES), axis=1)
    goal = target * gap(x0)[:, None]
    counts = np.full(x.shape[:2], np.inf)
    starts = None if layers is None else [part.start for part in layers]
    sizes = None if layers is None else [part.stop - part.start for part in layers]
    t, end = 0, np.inf
    while t < end and np.isinf(counts).any():
        z = rng.standard_normal((len(x0), 1, x0.shape[1]))
        along = slope(x) * z
        if starts is None or sizes is None:
            c = along.sum(-1, keepdims=True)
        else:
            c = np.repeat(np.add.reduceat(along, starts, axis=-1), sizes, axis=-1)
        x = np.clip(x - eta * c * z, -1e30, 1e30)
        t += 1
        hit = (gap(x) <= goal) & np.isinf(counts)
        if hit.any():
            counts[hit] = t
            end = min(end, np.ceil(race * np.median(counts, axis=0).min()))
    return counts


def tuned(counts: Array) -> float:
    """Median at the step size with the least median."""
    return float(np.median(counts, axis=0).min())


def scatter(counts: Array, num_tuning: int, num_test: int, repeats: int = 1000) -> tuple[float, float]:
    """Where 95 % of the medians fall that a step size chosen on few runs has on few others, by resampling runs."""
    rng = np.random.default_rng([num_tuning, num_test, *counts.shape])
    chosen = np.median(counts[rng.integers(len(counts), size=(repeats, num_tuning))], axis=1).argmin(1)
    judged = counts[rng.integers(len(counts), size=(repeats, num_test)), chosen[:, None]]
    low, high = np.quantile(np.median(judged, axis=1), [0.025, 0.975], method="inverted_cdf")
    return float(low), float(high)
