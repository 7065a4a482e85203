"""Why a step cannot be made as one pair of forwards, or not by the kernels: a line each, empty where it can."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from helene.directions import Target
from helene.kernels import backend
from helene.optimizers.curved import Curved
from helene.optimizers.zeroth import ZerothOrder
from helene.probe import is_compiled


def plain(model: nn.Module, optimizer: ZerothOrder) -> str:
    """Why a step is not one pair of probes of the whole model, in one line."""
    hyper, name = optimizer.param_groups[0], type(optimizer).__name__
    measure = type(optimizer)._measure
    if measure not in (ZerothOrder._measure, Curved._measure):
        return f"{name} measures more than one pair of losses"
    if hyper["num_directions"] != 1 or not hyper["two_sided"]:
        return "num_directions is not 1 or two_sided is off"
    if hyper["distribution"] != "gaussian" or hyper["direction_per_layer"]:
        return "directions are not gaussian ones of the whole model"
    if hyper.get("curvature", "none") not in ("none", "spsa"):
        return f"the curvature source {hyper['curvature']!r} has a batch or a backward of its own"
    if is_compiled(model):
        return "the model is compiled, so its modules' hooks do not run"
    if len({p.device for p in model.parameters()}) > 1:
        return "parameters are on several devices"
    return ""


def not_fused(targets: Sequence[Target]) -> str:
    """Why the kernels cannot write copies and updates of all parameters, in one line."""
    slow = [found.reason for found in (backend(t.tensor) for t in targets) if not found.is_triton]
    if slow:
        return slow[0]
    return "" if all(t.tensor.is_contiguous() for t in targets) else "a parameter is not contiguous"
