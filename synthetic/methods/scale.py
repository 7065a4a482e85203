"""Natural units of a problem and a start, and how many steps to expect."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from synthetic.methods.base import Method, Scale, Trial
from synthetic.problems.base import Problem


def scale_of(problem: Problem, x0: Tensor, target: float) -> Scale:
    r"""Units for trials, from constants and the start of one seed.

    Args:
        problem: In its own coordinates.
        x0: theta_0 − theta*, shape (d,), float64.
        target: Relative gap at which runs end.
    """
    constants = problem.constants
    gradient = problem.pullback(problem.slope(problem.features(x0)))
    if problem.separable:
        curvature = problem.curvature(problem.features(x0))
        parts = [curvature[part] for part in problem.layers.slices()]
        traces, tops = [p.sum().item() for p in parts], [p.max().item() for p in parts]
        largest = max(tops)
    else:
        hessian = problem.hessian(x0)
        parts = [torch.linalg.eigvalsh(hessian[part, part]) for part in problem.layers.slices()]
        traces, tops = [p.sum().item() for p in parts], [p[-1].item() for p in parts]
        largest = torch.linalg.eigvalsh(hessian)[-1].item()
    # Step sizes must suit both ends of the run: a loss may be steeper at the start.
    trace = max(constants.trace + 2.0 * constants.largest, sum(traces) + 2.0 * largest)
    pairs = [*zip(constants.layer_trace, constants.layer_top, strict=True), *zip(traces, tops, strict=True)]
    return Scale(
        trace=trace,
        layer_trace=max(t + 2.0 * top for t, top in pairs),
        smoothness=max(largest, constants.largest),
        curvature=gradient.square().sum().item(),
        horizon=trace * _rate(problem, x0) * math.log(1.0 / target),
        reach=(problem.features(x0) if problem.separable else x0).abs().max().item(),
    )


def _rate(problem: Problem, x0: Tensor) -> float:
    """1 / (2 mu), with mu the worse of the minimizer's and what ‖∇L‖² >= 2 mu (L − min L) says of the start."""
    p = problem.features(x0)
    gradient = problem.pullback(problem.slope(p))
    at_start = (gradient.square().sum() / (2.0 * problem.gap(p))).item()
    return 1.0 / (2.0 * min(problem.constants.smallest, at_start))


def predicted_steps(problem: Problem, method: Method, trial: Trial, scale: Scale, x0: Tensor, target: float) -> float:
    """Steps to expect at a good step size, within a small factor; budgets are a multiple of it."""
    rate, logs = _rate(problem, x0), math.log(1.0 / target)
    if method.directions == "shared":
        return scale.trace * rate * logs + 50.0
    if method.directions == "per_layer":
        coupling = 0.0 if problem.separable else problem.constants.largest
        return (scale.layer_trace + coupling) * rate * logs + 50.0
    settings = method.settings(trial, scale, problem)
    if "rho" not in settings:
        return 2.0 * scale.smoothness * rate * logs + 10.0
    rho = torch.as_tensor(settings["rho"]).expand(problem.layers.d)
    if problem.separable:
        far = (problem.features(x0).abs() / rho).max().item()
    else:
        far = max((x0[part].norm() / rho[part].min()).item() for part in problem.layers.slices())
    return far / float(settings["lr"]) + logs / math.log(4.0 / 3.0) + 10.0
