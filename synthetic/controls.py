r"""Predicted counts of the two controls, cell by cell, on the very grid that is measured.

Theories, the sharpest that the family allows. On quadratics with equal layers and few eigenvalues the exact chain
of `synthetic.predict`; on other separable losses the mean field of `synthetic.density`, with the factor by which the
chain's median differs from its mean on isotropic layers of the same number and width; for all else the second moments
M = E[x xᵀ] of the quadratic model at the minimizer, which obey a linear recursion:

    M ← M − η (H M + M H) + η² (2 H M H + tr(H M H) I)          with one direction for all layers,

and with one per layer the last bracket is H M H plus, in each layer's own block, what the bracket above says of it.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import cache
from typing import Any, Protocol

import numpy as np
import torch

from synthetic import predict
from synthetic.density import Group, mean_field_steps
from synthetic.design import seeds
from synthetic.problems import Problem, build
from synthetic.problems.profiles import PROFILES
from synthetic.problems.separable import Separable
from synthetic.scale import scale_of
from synthetic.starts import starts

_START_SEEDS = 16


def predict_cell(config: dict[str, Any]) -> dict[str, Any]:
    """The count that a control must need.

    Args:
        config: ``control`` ("mezo" or "per_layer"), ``problem``, ``start``, ``target``.

    Returns:
        ``status`` ("reached"), ``steps`` (the predicted median) and ``theory`` (its name).
    """
    spec, per_layer, target = config["problem"], config["control"] == "per_layer", config["target"]
    groups, levels = spec["layers"], spec.get("spectrum", {}).get("levels")
    if spec["kind"] == "gram":  # isotropic: the mean falls by 1 − 1 / (d + 2) a step, at q = 1
        size = groups[0][1] if per_layer else groups[0][0] * groups[0][1]
        steps = math.log(target) / math.log1p(-1.0 / (size + 2.0))
        return {"status": "reached", "steps": steps, "theory": "closed form"}
    if spec["kind"] == "quadratic" and len(groups) == 1 and levels and groups[0][1] % len(levels) == 0:
        steps = _chain_median(*groups[0], tuple(levels), per_layer, target)
        return {"status": "reached", "steps": steps, "theory": "exact chain"}
    problem = build(spec)
    x0 = starts(problem, config["start"]["kind"], config["start"]["size"], range(_START_SEEDS))
    if spec["kind"] in PROFILES and spec["kind"] != "quadratic":
        assert isinstance(problem, Separable)
        steps = _mean_field(problem, spec["kind"], x0[0], per_layer, target)
        if len(groups) == 1:
            steps *= _median_over_mean(*groups[0], per_layer, target)
        return {"status": "reached", "steps": steps, "theory": "mean field"}
    if spec["kind"] == "quadratic" and per_layer and levels and len(levels) == 1:
        # Isotropic layers that differ: the mean is not the median, for flat layers want steps that steep ones survive
        # only in the median.
        assert isinstance(problem, Separable)
        parts = problem.layers.slices()
        squares = torch.stack([x0[0][part].square().sum() for part in parts])[:, None].numpy()
        lam = torch.stack([problem.eigenvalues[part.start] for part in parts])[:, None].numpy()
        sizes = np.array([[part.stop - part.start] for part in parts], float)
        counts = predict.chain_counts(lam, sizes, squares, True, target, 48)
        return {"status": "reached", "steps": float(np.median(counts)), "theory": "exact chain"}
    if spec["kind"] == "coupled":  # its runs scatter widely, so that the mean says little of the median
        # The starts are those that are measured from, for they matter more than the directions; twice each.
        start, chosen = config["start"], seeds(problem.layers.d)["test"] * 2
        runs = starts(problem, start["kind"], start["size"], chosen).numpy()
        scale = scale_of(problem, x0[0], target)
        anchor = scale.layer_trace if per_layer else scale.trace
        parts = problem.layers.slices()
        hessian = problem.hessian(torch.zeros(problem.layers.d, dtype=torch.float64)).numpy()
        counts = predict.matrix_counts(hessian, runs, parts, per_layer, anchor, target)
        return {"status": "reached", "steps": float(np.median(counts)), "theory": "direct draws"}
    steps = second_moment_steps(problem, x0.numpy(), per_layer, target)
    return {"status": "reached", "steps": steps, "theory": "quadratic model"}


@cache
def _chain_median(n: int, w: int, levels: tuple[float, ...], per_layer: bool, target: float) -> float:
    runs = int(np.clip(6800 // (n * w), 24, 2000))  # the median's standard error is then about 1 %
    return float(np.median(predict.quadratic_counts(n, w, levels, per_layer, target, runs)))


@cache
def _median_over_mean(n: int, w: int, per_layer: bool, target: float) -> float:
    problem = build({"kind": "quadratic", "layers": [[n, w]]})
    x0 = starts(problem, "coordinate", 1.0, [0]).numpy()
    return _chain_median(n, w, (1.0,), per_layer, target) / second_moment_steps(problem, x0, per_layer, target)


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
    for q in predict.STEP_SIZES:
        limit = 1.5 * best if math.isfinite(best) else 1e4 * anchor / problem.constants.smallest
        best = min(best, mean_field_steps(profile, groups, q / anchor, target, limit))
    return best


def _kind(problem: Separable, x0: torch.Tensor, part: slice) -> tuple[tuple[tuple[float, float, float], int], ...]:
    """What tells one layer from another: its coordinates' eigenvalues, scales and distances, and how many have them."""
    distances = problem.features(x0)[part].abs()
    rows = zip(problem.eigenvalues[part].tolist(), problem.scales[part].tolist(), distances.tolist(), strict=True)
    return tuple(sorted(Counter((a, s, round(u, 12)) for a, s, u in rows).items()))


def second_moment_steps(problem: Problem, x0: np.ndarray, per_layer: bool, target: float) -> float:
    """Steps until the mean gap of the quadratic model reaches the target, at the best step size; see the module."""
    scale = scale_of(problem, torch.from_numpy(x0[0]), target)
    anchor = scale.layer_trace if per_layer else scale.trace
    blocks = problem.layers.slices() if per_layer else [slice(0, problem.layers.d)]
    if problem.separable:  # in the eigenbasis only the diagonal of M matters
        u = problem.features(torch.from_numpy(x0)).numpy()
        lam = problem.curvature(torch.zeros(problem.layers.d, dtype=torch.float64)).numpy()
        model: _Model = _Diagonal(lam, (u * u).mean(0), blocks)
    else:
        hessian = problem.hessian(torch.zeros(problem.layers.d, dtype=torch.float64)).numpy()
        model = _Full(hessian, x0.T @ x0 / len(x0), blocks)
    found = math.inf
    for q in predict.STEP_SIZES:
        found = min(found, _mean_count(model, q / anchor, target, found))
    return found


class _Model(Protocol):
    """Second moments of a quadratic model."""

    start: np.ndarray

    def gap(self, moments: np.ndarray) -> float: ...

    def move(self, moments: np.ndarray, eta: float) -> np.ndarray: ...


class _Full:
    def __init__(self, hessian: np.ndarray, moments: np.ndarray, blocks: list[slice]) -> None:
        self.hessian, self.start, self.blocks = hessian, moments, blocks

    def gap(self, moments: np.ndarray) -> float:
        return float(np.vdot(self.hessian, moments))

    def move(self, moments: np.ndarray, eta: float) -> np.ndarray:
        hm = self.hessian @ moments
        hmh = hm @ self.hessian
        moments = moments - eta * (hm + hm.T) + eta**2 * hmh
        for part in self.blocks:
            own = hmh[part, part]
            moments[part, part] += eta**2 * (own + np.trace(own) * np.eye(len(own)))
        return moments


class _Diagonal:
    def __init__(self, eigenvalues: np.ndarray, moments: np.ndarray, blocks: list[slice]) -> None:
        self.eigenvalues, self.start = eigenvalues, moments
        self.starts, self.sizes = [b.start for b in blocks], [b.stop - b.start for b in blocks]

    def gap(self, moments: np.ndarray) -> float:
        return float(self.eigenvalues @ moments)

    def move(self, moments: np.ndarray, eta: float) -> np.ndarray:
        slopes = self.eigenvalues**2 * moments
        spread = np.repeat(np.add.reduceat(slopes, self.starts), self.sizes)
        return moments - 2.0 * eta * self.eigenvalues * moments + eta**2 * (2.0 * slopes + spread)


def _mean_count(model: _Model, eta: float, target: float, limit: float) -> float:
    moments, t = model.start, 0
    start = gap = model.gap(moments)
    while gap > target * start:
        if t >= min(limit, 10**6) or not 0.0 < gap <= 1e3 * start:
            return math.inf
        moments = model.move(moments, eta)
        before, gap = gap, model.gap(moments)
        t += 1
    if gap <= 0.0:
        return math.inf
    return t - math.log(target * start / gap) / math.log(before / gap)  # the decay inside a step is exponential
