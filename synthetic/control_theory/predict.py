r"""Predicted counts of the two controls, cell by cell, on the very grid that is measured.

Each family gets the sharpest theory that it allows:

* quadratics whose layers do not interact: the exact chain of `chain`;
* other separable losses at small d, and quadratics whose layers interact: draws of the recursion itself;
* other separable losses at larger d: the density of `mean_field`, times the factor by which the chain's median differs
  from its mean on isotropic layers of the same number and width;
* real data: the mean of `second_moments`.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import torch

from synthetic.control_theory import chain
from synthetic.control_theory.mean_field import PROFILES, Group, mean_field_steps
from synthetic.control_theory.second_moments import second_moment_steps
from synthetic.design import seeds
from synthetic.methods.scale import scale_of
from synthetic.problems import Problem, build
from synthetic.problems.separable import Separable
from synthetic.problems.starts import starts

_START_SEEDS = 16
_DRAWN_TO = 192  # largest d at which draws cost less than the rest of a cell
_Kind = tuple[tuple[tuple[float, float, float], int], ...]


def predict_cell(config: dict[str, Any]) -> dict[str, Any]:
    """The count that a control must need.

    Args:
        config: ``control`` ("mezo" or "per_layer"), ``problem``, ``start``, ``target``.

    Returns:
        ``status`` ("reached"), ``steps`` (the predicted median), ``theory`` (its name) and ``range``: where 95 % of the
        medians fall that are found with the seeds of a cell, None where the theory is of means.
    """
    spec, per_layer, target = config["problem"], config["control"] == "per_layer", config["target"]
    groups, kind = spec["layers"], spec["kind"]
    if kind == "gram":  # isotropic: the mean falls by 1 − 1 / (d + 2) a step, at q = 1
        size = groups[0][1] if per_layer else groups[0][0] * groups[0][1]
        return _result("closed form", math.log(target) / math.log1p(-1.0 / (size + 2.0)))
    problem = build(spec)
    x0 = starts(problem, config["start"]["kind"], config["start"]["size"], range(_START_SEEDS))
    if kind == "quadratic":
        assert isinstance(problem, Separable)
        return _result("exact chain", _chain(problem, x0[0], per_layer, target), problem.layers.d)
    if kind == "coupled":  # runs scatter so widely that their mean says little of the median
        counts = _drawn_coupled(problem, config["start"], x0[0], per_layer, target)
        return _result("direct draws", counts, problem.layers.d)
    if not isinstance(problem, Separable):
        return _result("quadratic model", second_moment_steps(problem, x0.numpy(), per_layer, target))
    if problem.layers.d <= _DRAWN_TO:
        scale = scale_of(problem, x0[0], target)
        anchor = scale.layer_trace if per_layer else scale.trace
        counts = _drawn(kind, _kinds(problem, x0[0], per_layer), round(anchor, 9), per_layer, target)
        return _result("direct draws", counts, problem.layers.d)
    steps = _mean_field(problem, kind, x0[0], per_layer, target)
    if len(groups) == 1:
        steps *= _median_over_mean(*groups[0], per_layer, target)
    return _result("mean field", steps)


def _result(theory: str, counts: float | chain.Array, d: int = 0) -> dict[str, Any]:
    """The result, from a count or from many runs at many step sizes."""
    if isinstance(counts, float):
        return {"status": "reached", "steps": counts, "theory": theory, "range": None}
    band = chain.scatter(counts, *(len(chosen) for chosen in seeds(d).values()))
    return {"status": "reached", "steps": chain.tuned(counts), "theory": theory, "range": list(band)}


def _runs(d: int) -> int:
    """So many that the standard error of the median, 0.66 · 1.25 / √(d · runs), is about 1 %."""
    return int(np.clip(6800 // d, 24, 2000))


def _race(d: int) -> float:
    """Runs end at this multiple of the best median; small problems scatter more, and cost less."""
    return 4.0 if d <= 64 else 1.5


def _kinds(problem: Separable, x0: torch.Tensor, per_layer: bool) -> tuple[_Kind, ...]:
    """What is alike among the coordinates that share a direction, one entry per direction."""
    parts = problem.layers.slices() if per_layer else [slice(0, problem.layers.d)]
    return tuple(_kind(problem, x0, part) for part in parts)


def _chain(problem: Separable, x0: torch.Tensor, per_layer: bool, target: float) -> chain.Array:
    """Counts of the chain, coordinates that share a direction, an eigenvalue and a distance being one block."""
    return _chain_counts(_kinds(problem, x0, per_layer), per_layer, target)


@cache
def _chain_counts(layers: tuple[_Kind, ...], per_layer: bool, target: float) -> chain.Array:
    blocks = max(len(layer) for layer in layers)
    lam, sizes, squares = np.zeros((3, len(layers), blocks))  # blocks that a layer lacks are empty
    for i, layer in enumerate(layers):
        for j, ((eigenvalue, _, distance), count) in enumerate(layer):
            lam[i, j], sizes[i, j], squares[i, j] = eigenvalue, count, count * distance**2
    d = int(sizes.sum())
    return chain.chain_counts(lam, sizes, squares, per_layer, target, _runs(d), race=_race(d))


@cache
def _median_over_mean(n: int, w: int, per_layer: bool, target: float) -> float:
    problem = build({"kind": "quadratic", "layers": [[n, w]]})
    assert isinstance(problem, Separable)
    x0 = starts(problem, "coordinate", 1.0, [0])
    median = chain.tuned(_chain(problem, x0[0], per_layer, target))
    return median / second_moment_steps(problem, x0.numpy(), per_layer, target)


@cache
def _drawn(profile: str, directions: tuple[_Kind, ...], anchor: float, per_layer: bool, target: float) -> chain.Array:
    """Counts of draws in the eigenbasis, signs of the start at random."""
    alike = [(*kind, count) for kinds in directions for kind, count in kinds]
    curvature, scales, distances = (
        np.repeat(column, [count for *_, count in alike]) for column in list(zip(*alike, strict=True))[:3]
    )
    ends = np.cumsum([sum(count for _, count in kinds) for kinds in directions])
    layers = [slice(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    phi, d = PROFILES[profile], int(ends[-1])
    signs = np.random.default_rng([0, d, per_layer]).choice([-1.0, 1.0], (_runs(d), d))
    return chain.drawn_counts(
        lambda u: curvature * scales * phi.slope(u / scales),
        lambda u: (curvature * scales**2 * phi.value(u / scales)).sum(-1),
        signs * distances,
        layers if per_layer else None,
        anchor,
        target,
        race=_race(d),
    )


def _drawn_coupled(
    problem: Problem, start: dict[str, Any], x0: torch.Tensor, per_layer: bool, target: float
) -> chain.Array:
    """Counts of draws from the starts that are measured from, for they matter more than the directions."""
    scale, chosen = scale_of(problem, x0, target), seeds(problem.layers.d)["test"]
    chosen = chosen * max(2, _runs(problem.layers.d) // len(chosen))
    hessian = problem.hessian(torch.zeros(problem.layers.d, dtype=torch.float64)).numpy()
    return chain.drawn_counts(
        lambda x: x @ hessian,
        lambda x: (x @ hessian * x).sum(-1),
        starts(problem, start["kind"], start["size"], chosen).numpy(),
        problem.layers.slices() if per_layer else None,
        scale.layer_trace if per_layer else scale.trace,
        target,
        race=_race(problem.layers.d),
    )


def _mean_field(problem: Separable, profile: str, x0: torch.Tensor, per_layer: bool, target: float) -> float:
    """Least mean-field count over the step sizes."""
    scale = scale_of(problem, x0, target)
    kinds = Counter(_kind(problem, x0, part) for part in problem.layers.slices())
    groups = [
        Group(block if per_layer else 0, count * (1 if per_layer else copies), copies if per_layer else 1, *alike)
        for block, (kind, copies) in enumerate(kinds.items())
        for alike, count in kind
    ]
    anchor, best = scale.layer_trace if per_layer else scale.trace, math.inf
    for q in chain.STEP_SIZES:
        limit = 1.5 * best if math.isfinite(best) else 1e4 * anchor / problem.constants.smallest
        best = min(best, mean_field_steps(profile, groups, q / anchor, target, limit))
    return best


def _kind(problem: Separable, x0: torch.Tensor, part: slice) -> _Kind:
    """What tells one layer from another: its coordinates' eigenvalues, scales and distances, and how many have them."""
    distances = problem.features(x0)[part].abs()
    rows = zip(problem.eigenvalues[part].tolist(), problem.scales[part].tolist(), distances.tolist(), strict=True)
    return tuple(sorted(Counter((a, s, round(u, 12)) for a, s, u in rows).items()))
