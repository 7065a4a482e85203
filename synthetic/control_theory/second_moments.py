r"""Mean counts from the second moments M = E[x xᵀ] of the quadratic model at the minimizer: a linear recursion.

    M ← M − η (H M + M H) + η² (2 H M H + tr(H M H) I)          with one direction for all layers,

and with one per layer the last bracket is H M H plus, in each layer's own block, what the bracket above says of it.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import torch

from synthetic.control_theory.chain import STEP_SIZES
from synthetic.methods.scale import scale_of
from synthetic.problems import Problem


def second_moment_steps(problem: Problem, x0: np.ndarray, per_layer: bool, target: float) -> float:
    """Steps until the mean gap of the quadratic model reaches the target, at the best step size."""
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
    fewest = math.inf
    for q in STEP_SIZES:
        fewest = min(fewest, _mean_count(model, q / anchor, target, fewest))
    return fewest


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
