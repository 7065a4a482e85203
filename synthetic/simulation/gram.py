r"""Counts on quadratics with layers of any size, exact in law: the Gram reduction.

Where a block of m coordinates has one eigenvalue λ, SPSA with momentum sees it only through s = x·x, p = x·m and
r = m·m. With ξ, ζ standard normal and χ² of m − 2 degrees, a direction has z·x = √s ξ,
z·m = (p/√s) ξ + √(r − p²/s) ζ and z·z = ξ² + ζ² + χ², so with c = Σ λ √s ξ over the blocks that share the direction

    x·m ← β p + c (z·x),   m·m ← β² r + 2 β c (z·m) + c² (z·z),   s ← s − 2 η x·m + η² m·m,   p ← x·m − η m·m.

A step costs the same for every m, and HELENE on a floor that no h reaches is this process. Without momentum and with
one eigenvalue the steps are independent factors 1 − 2 η λ ξ² + η² λ² ξ² (z·z) of s, so that millions of them are one
cumulative sum. Never imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synthetic.design import trials

Array = NDArray[np.float64]
_CHUNK = 1 << 16
_LOST = 20.0  # logarithm of how far a loss may rise before its run is given up


def heavy_ball_counts(
    layers: int,
    width: int,
    levels: Sequence[float],
    beta: float,
    step_sizes: Sequence[float],
    target: float,
    num_seeds: int,
    *,
    seed: int = 0,
    race: float = 1.5,
    most: int = 10**8,
) -> Array:
    """Steps to the target of heavy-ball MeZO (MeZO at beta 0), one direction for all layers.

    Args:
        layers: n; equal layers share their directions, so that only n w matters.
        width: w, a multiple of the number of levels, at least 2 for each.
        levels: Eigenvalues, each of the same share of a layer.
        beta: Momentum.
        step_sizes: q, the step size times (tr H + 2 λ_max) / (1 − beta).
        target: Relative gap.
        num_seeds: Independent runs.
        seed: Of this module's generator.
        race: All end at this multiple of the best median.
        most: Most steps.

    Returns:
        Counts, shape (num_seeds, len(step_sizes)), inf beyond the race.

    Raises:
        ValueError: If a block would have fewer than two coordinates.
    """
    lam = np.asarray(levels, float)
    size = layers * width / lam.size
    if size < 2:
        raise ValueError(f"a block must have at least 2 coordinates, got {size:g}; the simulator takes small ones")
    rng = np.random.default_rng([seed, layers, width, 3])
    q = np.asarray(step_sizes, float)
    eta = (q * (1.0 - beta) / (size * lam.sum() + 2.0 * lam.max()))[:, None]
    s = np.full((num_seeds, q.size, lam.size), size)
    p, r = np.zeros_like(s), np.zeros_like(s)
    start = size * lam.sum()
    counts = np.full((num_seeds, q.size), np.inf)
    t, end = 0, float(most)
    while t < end and np.isinf(counts).any():
        xi, zeta = rng.standard_normal((2, num_seeds, 1, lam.size))
        rest = rng.chisquare(size - 2.0, xi.shape) if size > 2 else 0.0
        root = np.sqrt(s)
        along = root * xi
        part = p / np.where(root > 0.0, root, 1.0)
        across = part * xi + np.sqrt(np.maximum(r - part**2, 0.0)) * zeta
        c = (lam * along).sum(-1, keepdims=True)
        p, r = beta * p + c * along, beta**2 * r + 2.0 * beta * c * across + c**2 * (xi**2 + zeta**2 + rest)
        s, p = np.clip(s - 2.0 * eta * p + eta**2 * r, 0.0, 1e200), p - eta * r
        t += 1
        hit = ((lam * s).sum(-1) <= target * start) & np.isinf(counts)
        if hit.any():
            counts[hit] = t
            end = min(end, np.ceil(race * np.median(counts, axis=0).min()))
    return counts


def isotropic_counts(
    layers: int,
    width: int,
    per_layer: bool,
    step_sizes: Sequence[float],
    target: float,
    num_seeds: int,
    *,
    seed: int = 0,
    race: float = 1.5,
    most: int = 10**8,
) -> Array:
    """Steps to the target of MeZO, or of one direction per layer, on isotropic layers of any width.

    Args, returns: As `heavy_ball_counts`; q is the step size times tr H + 2 λ_max, of a layer with one per layer.
    """
    blocks, size = (layers, width) if per_layer else (1, layers * width)
    rng = np.random.default_rng([seed, layers, width, per_layer])
    q = np.asarray(step_sizes, float)
    counts = np.full((num_seeds, q.size), np.inf)
    end, eta = float(most), q / (size + 2.0)
    expected = 2.0 * (size + 2.0) * math.log(1.0 / target)
    rows = int(max(16, min(_CHUNK // blocks, expected)))
    for run in range(num_seeds):
        base, t = np.zeros((blocks, q.size)), 0
        while t < end and (np.isinf(counts[run]) & (base.max(0) < _LOST)).any():
            steps = int(min(rows, end - t))
            xi2 = rng.chisquare(1.0, (steps, blocks, 1))
            rest = rng.chisquare(size - 1.0, xi2.shape) if size > 1 else np.zeros_like(xi2)
            factor = 1.0 - 2.0 * eta * xi2 + eta**2 * xi2 * (xi2 + rest)
            with np.errstate(divide="ignore"):
                logs = base + np.cumsum(np.log(factor), axis=0)
            base = logs[-1]
            gaps = np.exp(np.minimum(logs, 500.0)).mean(1)
            first = (gaps <= target).argmax(0)
            reached = (gaps <= target).any(0) & np.isinf(counts[run])
            counts[run, reached] = t + 1 + first[reached]
            t += steps
        # Counts of large d scatter little, so twice the race of the runs so far leaves out nothing that could be best.
        end = min(end, np.ceil(2.0 * race * np.median(counts[: run + 1], axis=0).min()))
    return counts


def run_gram(config: dict[str, Any]) -> dict[str, Any]:
    """A cell of the Gram reduction, tuned and judged like any other; see `synthetic.run.run_cell`."""
    (layers, width), *_ = config["problem"]["layers"]
    levels = config["problem"]["spectrum"]["levels"]
    options, target, method = trials(config["space"]), config["target"], config["method"]
    d, seeds = layers * width, config["seeds"]
    predicted = ((width if method == "per_layer" else d) + 2.0) * math.log(1.0 / target)
    most = round(config["cap"] * predicted)

    def counts(steps: list[float], num_seeds: int, seed: int, race: float) -> Array:
        if method == "heavy_ball":
            beta = options[0]["beta1"]
            return heavy_ball_counts(
                layers, width, levels, beta, steps, target, num_seeds, seed=seed, race=race, most=most
            )
        one = method == "per_layer"
        return isotropic_counts(layers, width, one, steps, target, num_seeds, seed=seed, race=race, most=most)

    tuning = counts([o["q"] for o in options], len(seeds["tuning"]), seeds["tuning"][0], config["race"])
    best = int(np.median(tuning, axis=0).argmin())
    test = counts([options[best]["q"]], len(seeds["test"]), seeds["test"][0], math.inf)[:, 0]
    steps = [o["q"] for o in options]
    return {
        "status": "reached" if np.isfinite(np.median(test)) else "out_of_budget",
        "problem": {
            "n": layers,
            "d": d,
            "max_d": width,
            "trace_over_mu": sum(levels) / len(levels) * d / min(levels),
            "mu": min(levels),
            "radius": math.inf,
            "condition": max(levels) / min(levels),
        },
        "predicted_steps": predicted,
        "forwards_per_step": 2.0 * (layers if method == "per_layer" else 1),
        "tuning": {
            "steps": [[_plain(v) for v in column] for column in tuning.T],
            "status": ["".join("r" if np.isfinite(v) else "o" for v in column) for column in tuning.T],
            "stopped": int(tuning[np.isfinite(tuning)].max(initial=0)),
        },
        "best": best,
        "best_trial": options[best],
        "edge": options[best]["q"] in (min(steps), max(steps)),
        "test": {
            "steps": [_plain(v) for v in test],
            "status": "".join("r" if np.isfinite(v) else "o" for v in test),
            "budget": most,
        },
    }


def _plain(value: float) -> float | int:
    return int(value) if np.isfinite(value) else math.inf
