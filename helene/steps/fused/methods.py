r"""Which steps have a fused update, and what its kernel needs to know.

A rule is recognised by its exact class: a subclass may compute something else. What depends on the step is asked of the
rule, combined on the host in double precision as Python does in `helene.functional`, and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from helene import functional
from helene.evaluation.curvature import KeptGradient
from helene.evaluation.directions import Target
from helene.kernels.codes import (
    ADAM,
    DECAY_LAST,
    HELENE,
    LION,
    MOMENTUM,
    NUM_HYPERS,
    SGD,
    SGD_PLAIN,
    SIGN,
    TORCH_SGD,
)
from helene.rules import (
    AdamRule,
    AdamWRule,
    DecayLastRule,
    HeavyBallRule,
    HeleneRule,
    LionRule,
    SGDRule,
    SignRule,
    TorchSGDRule,
)
from helene.steps.plan import StepPlan


class Plain(NamedTuple):
    """Columns of the kernel's hyper-parameters for SGD, decay last and signs; all start with these two."""

    lr: float
    decay: float


class HeavyBall(NamedTuple):
    """Columns for heavy ball and torch's SGD, whose decay is part of g."""

    lr: float
    decay: float
    beta1: float


class HeleneColumns(NamedTuple):
    """Columns for HELENE; ``estimates`` is 1 at the steps that estimate h from g."""

    lr: float
    decay: float
    beta1: float
    alpha: float
    gamma: float
    floor: float
    denominator_eps: float
    correction: float
    estimates: float
    beta2: float
    rest2: float
    batch_size: float


class Adam(NamedTuple):
    """Columns for Adam; the decay is either apart or part of g (``coupled``)."""

    lr: float
    decay: float
    beta1: float
    rest1: float
    beta2: float
    rest2: float
    correction: float
    denominator_eps: float
    coupled: float


class Lion(NamedTuple):
    """Columns for Lion."""

    lr: float
    decay: float
    beta1: float
    rest1: float
    beta2: float
    rest2: float


class Fused(NamedTuple):
    """A fused update: its code in the kernel, and the columns of a layer at a step."""

    code: int
    columns: Callable[[Any, StepPlan], tuple[float, ...]]

    def rows(self, plan: StepPlan) -> Tensor:
        """Hyper-parameters of a step, float32, shape (layers, `NUM_HYPERS`)."""
        rows = [list(self.columns(rule, plan)) for rule in plan.rules]
        return torch.tensor([row + [0.0] * (NUM_HYPERS - len(row)) for row in rows], dtype=torch.float32)


def fused(plan: StepPlan, targets: Sequence[Target]) -> Fused | str:
    """The fused update of a step, or the reason why there is none."""
    found = of_plan(plan)
    return found if isinstance(found, str) else unfit(targets) or found


def unfit(targets: Sequence[Target]) -> str:
    """Why kernels cannot move all parameters, in one line; empty where they can."""
    for target in targets:
        if not target.tensor.is_contiguous():
            return f"parameter {target.name} is not contiguous"
        if target.tensor.dtype == torch.float64:
            return f"parameter {target.name} is float64, the kernels compute in float32"
    return ""


def of_plan(plan: StepPlan, kept: KeptGradient | None = None) -> Fused | str:
    """The fused update of a step whose parameters the kernels can move, or the reason why there is none.

    They move along the gradient where that is ``kept`` in memory, else along directions.
    """
    rule = plan.rules[0]
    if type(rule) not in _FUSED:
        return f"{type(rule).__name__} has no fused update"
    drawn = plan.probing.is_dense or plan.probing.is_low_rank
    if kept is None and not (drawn and plan.measurement.sums_directions):
        return "a step is not along directions of normals or signs for the whole model, nor along some of low rank"
    if plan.source is not None and not plan.source.of_step:
        return f"the curvature source {plan.source.name!r} is evaluated apart"
    if plan.asks_floors:
        return "a floor is asked once h is up to date"
    if type(rule) in (SGDRule, DecayLastRule) and not any(r.weight_decay for r in plan.rules):
        return Fused(SGD_PLAIN, _FUSED[type(rule)].columns)
    return _FUSED[type(rule)]


def _helene(rule: Any, plan: StepPlan) -> HeleneColumns:
    return HeleneColumns(
        lr=rule.lr,
        decay=rule.lr * rule.weight_decay,
        beta1=rule.beta1,
        alpha=rule.alpha(plan.step),
        gamma=rule.gamma,
        floor=rule.floor,
        denominator_eps=rule.denominator_eps,
        correction=rule.correction(plan.step),
        estimates=0.0 if plan.source is None else 1.0,
        beta2=rule.beta2,
        rest2=1.0 - rule.beta2,
        batch_size=float(rule.batch_size or 0),
    )


def _adam(rule: Any, plan: StepPlan) -> Adam:
    beta1, beta2 = rule.beta1, rule.beta2
    lr, scale = functional.adam_scales(rule.lr, beta1, beta2, plan.step)
    return Adam(
        lr=lr,
        decay=0.0 if rule.coupled else rule.lr * rule.weight_decay,
        beta1=beta1,
        rest1=1.0 - beta1,
        beta2=beta2,
        rest2=1.0 - beta2,
        correction=scale,
        denominator_eps=rule.denominator_eps,
        coupled=rule.weight_decay if rule.coupled else 0.0,
    )


def _lion(rule: Any, plan: StepPlan) -> Lion:
    return Lion(rule.lr, rule.lr * rule.weight_decay, rule.beta1, 1.0 - rule.beta1, rule.beta2, 1.0 - rule.beta2)


_FUSED = {
    SGDRule: Fused(SGD, lambda rule, plan: Plain(rule.lr, rule.weight_decay)),
    HeleneRule: Fused(HELENE, _helene),
    TorchSGDRule: Fused(TORCH_SGD, lambda rule, plan: HeavyBall(rule.lr, rule.weight_decay, rule.momentum)),
    HeavyBallRule: Fused(MOMENTUM, lambda rule, plan: HeavyBall(rule.lr, rule.lr * rule.weight_decay, rule.momentum)),
    DecayLastRule: Fused(DECAY_LAST, lambda rule, plan: Plain(rule.lr, rule.lr * rule.weight_decay)),
    SignRule: Fused(SIGN, lambda rule, plan: Plain(rule.lr, rule.lr * rule.weight_decay)),
    AdamRule: Fused(ADAM, _adam),
    AdamWRule: Fused(ADAM, _adam),
    LionRule: Fused(LION, _lion),
}
