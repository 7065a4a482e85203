r"""Predicted counts of the two controls, cell by cell, on the very grid that is measured.

Three theories, the sharpest that the family allows (see `synthetic.predict`): the exact chain on quadratics with few
distinct eigenvalues; the mean field with the chain's finite-size factor on log-cosh; for all else the second moments
M = E[x xᵀ] of the quadratic model at the minimizer, which obey a linear recursion:

    M ← M − η (H M + M H) + η² (2 H M H + tr(H M H) I)          with one direction for all layers,

and with one per layer the last bracket is H M H plus, in each layer's own block, what the bracket above says of it.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
import torch

from synthetic import predict
from synthetic.problems import Problem, build
from synthetic.starts import starts

METHODS = ("mezo", "per_layer")
_START_SEEDS = 16


def predict_cell(config: dict[str, Any]) -> dict[str, Any]:
    """The count that a control must need.

    Args:
        config: ``control`` ("mezo" or "per_layer"), ``problem``, ``start``, ``target``.

    Returns:
        ``status`` ("reached"), ``steps`` (the predicted median) and ``theory`` (its name).
    """
    spec, per_layer, target = config["problem"], config["control"] == "per_layer", config["target"]
    equal = len(spec["layers"]) == 1
    levels = spec.get("spectrum", {}).get("levels")
    if equal and spec["kind"] in ("quadratic", "log_cosh") and levels and spec["layers"][0][1] % len(levels) == 0:
        (n, w), *_ = spec["layers"]
        runs = int(np.clip(6800 // (n * w), 24, 2000))  # the median's standard error is then about 1 %
        if spec["kind"] == "quadratic":
            counts = predict.quadratic_counts(n, w, levels, per_layer, target, runs)
            return {"status": "reached", "steps": float(np.median(counts)), "theory": "exact chain"}
        if len(levels) == 1 and config["start"]["kind"] in ("coordinate", "layer", "total"):
            counts = predict.quadratic_counts(n, w, levels, per_layer, target, runs)
            apart = {"coordinate": 1.0, "layer": math.sqrt(w), "total": math.sqrt(n * w)}[config["start"]["kind"]]
            time = predict.log_cosh_time(config["start"]["size"] / apart, target)
            steps = float(np.median(counts)) * time / math.log(1.0 / target)
            return {"status": "reached", "steps": steps, "theory": "mean field"}
    problem = build(spec)
    x0 = starts(problem, config["start"]["kind"], config["start"]["size"], range(_START_SEEDS)).numpy()
    steps = second_moment_steps(problem, x0, per_layer, target)
    return {"status": "reached", "steps": steps, "theory": "quadratic model"}


def second_moment_steps(problem: Problem, x0: np.ndarray, per_layer: bool, target: float) -> float:
    """Steps until the mean gap of the quadratic model reaches the target, at the best step size; see the module."""
    constants = problem.constants
    anchor = constants.trace + 2.0 * constants.largest
    if per_layer:
        anchor = max(t + 2.0 * top for t, top in zip(constants.layer_trace, constants.layer_top, strict=True))
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
        if t >= min(limit, 10**6) or gap > 1e3 * start:
            return math.inf
        moments = model.move(moments, eta)
        before, gap = gap, model.gap(moments)
        t += 1
    return t - math.log(target * start / gap) / math.log(before / gap)  # the decay inside a step is exponential
