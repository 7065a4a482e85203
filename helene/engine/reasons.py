"""Why a step cannot be made of pairs of forwards, or not by the kernels: a line each, empty where it can."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from helene.evaluation.curvature import NONE
from helene.evaluation.directions import Target
from helene.evaluation.modules import is_compiled
from helene.kernels import backend
from helene.optimizers.forward import Tangents
from helene.optimizers.fzoo import Spread
from helene.optimizers.grouped import GroupPairs
from helene.rules import CurvatureRule
from helene.steps.measurement import Measurement
from helene.steps.plan import Probing, StepPlan

GRADIENTS = "helene.engine.gradients.GradientEngine"
ENGINES: dict[type[Measurement], str] = {
    Spread: "helene.engine.spreads.SpreadEngine",
    GroupPairs: "helene.engine.groups.GroupEngine",
    Tangents: "helene.engine.tangents.TangentEngine",
}


def not_pairs(plan: StepPlan) -> str:
    """Why steps do not follow from pairs of losses along one direction, in one line; see `apart` for estimates of h."""
    if not isinstance(plan.probing, Probing):
        engine = ENGINES.get(type(plan.measurement))
        way_out = f"; {engine} captures its steps" if engine else ""
        return f"{plan.method} measures something else than pairs of losses{way_out}"
    return plan.measurement.not_from_pairs(plan)


def apart(plan: StepPlan, ever: bool = False) -> str:
    """Why a step that estimates h is none of pairs, in one line; ``ever`` asks of all steps of the run."""
    rule, source = plan.rules[0], plan.source
    if ever and isinstance(rule, CurvatureRule) and rule.curvature is not NONE:
        source = rule.curvature
    if source is None or source.of_step:
        return ""
    return f"the source of curvature={source.name!r} has a batch or a backward of its own"


def plain(model: nn.Module, plan: StepPlan) -> str:
    """Why steps are not pairs of probes of the whole model, in one line."""
    return not_pairs(plan) or not_whole(model)


def not_whole(model: nn.Module) -> str:
    """Why a captured forward cannot be that of a model, in one line."""
    if any(hasattr(p, "device_mesh") for p in model.parameters()):
        return "the parameters are sharded"
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


def first_line(error: BaseException) -> str:
    """What an error says, in one line."""
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
