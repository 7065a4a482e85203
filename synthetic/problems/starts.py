r"""Where runs start: theta_0 − theta*, at a stated distance, its signs drawn per seed.

"coordinate": every coordinate of the eigenbasis is ``distance`` away, so ‖theta_0 − theta*‖ = distance √d;
"layer": every layer is, spread evenly over its coordinates; "total": the whole is. What a theorem bounds depends on
which of these is held fixed while d grows. "layer_gap" and "total_gap" fix L_i(theta_0) − min L_i, or their sum.
Problems that are not separable use the coordinates themselves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from synthetic.problems.base import Problem

KINDS = ("coordinate", "layer", "total", "layer_gap", "total_gap")


def starts(problem: Problem, kind: str, size: float, seeds: Sequence[int]) -> Tensor:
    """Displacements theta_0 − theta*, one row per seed, float64.

    Args:
        problem: In its own coordinates.
        kind: One of `KINDS`.
        size: The distance, or the gap, that the kind fixes.
        seeds: Signs depend on the seed alone.

    Returns:
        Shape (len(seeds), d).

    Raises:
        ValueError: If the kind is unknown, the size not positive, or a gap per layer is asked of layers that interact.
    """
    if kind not in KINDS:
        raise ValueError(f"start must be one of {', '.join(KINDS)}, got {kind!r}")
    if not 0 < size < math.inf:
        raise ValueError(f"size of the start must be positive and finite, got {size!r}")
    layers = problem.layers
    signs = torch.from_numpy(np.stack([np.random.default_rng([s, 7]).choice([-1.0, 1.0], layers.d) for s in seeds]))
    if kind == "coordinate":
        unit = size * signs
    elif kind == "total":
        unit = size / math.sqrt(layers.d) * signs
    elif kind == "layer":
        unit = size * signs / layers.per_coordinate([math.sqrt(w) for w in layers.sizes])
    else:
        unit = _at_gap(problem, kind, size, signs)
    return problem.pullback(unit) if problem.separable else unit


def _at_gap(problem: Problem, kind: str, size: float, signs: Tensor) -> Tensor:
    """Bisection on the distance, of each layer or of all; the gap grows with it, for the loss is convex."""
    if kind == "layer_gap" and not problem.separable:
        raise ValueError(
            f"the layers of {problem.name} interact, so that they have no gaps of their own; use total_gap"
        )
    low, high = torch.zeros(1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)

    def gaps(scale: Tensor) -> Tensor:
        x = signs * (problem.layers.spread(scale) if kind == "layer_gap" else scale)
        terms = problem.gap_terms(x if problem.separable else problem.features(x))
        return problem.layers.sum(terms) if kind == "layer_gap" else terms.sum(-1, keepdim=True)

    width = problem.layers.n if kind == "layer_gap" else 1
    low, high = (v.expand(signs.shape[0], width).clone() for v in (low, high))
    while bool((short := gaps(high) < size).any()):
        high = torch.where(short, 2.0 * high, high)
    for _ in range(80):
        middle = 0.5 * (low + high)
        below = gaps(middle) < size
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return signs * (problem.layers.spread(high) if kind == "layer_gap" else high)
