"""The floors of an optimizer's layers as numbers: asked when h has changed, kept until it does again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from helene.curvature import Estimate
from helene.directions import chunks
from helene.floors import Layer
from helene.plan import StepPlan
from helene.rules import HeleneRule, Rule

if TYPE_CHECKING:
    from helene.optimizers.base import Base


def check(optimizer: Base, rules: Sequence[Rule]) -> None:
    """Ask the rules that do not look at h, so that a bad one is told when it is given."""
    resolve(optimizer, rules, 0, True)


def resolve(optimizer: Base, rules: Sequence[Rule], step: int, estimates: bool) -> tuple[Rule, ...]:
    """The rules with their floors as numbers, but for those that follow h where this step estimates it."""
    return tuple(
        replace(rule, floor=_floor(optimizer, index, rule, step))  # type: ignore[call-arg]
        if isinstance(rule, HeleneRule) and callable(rule.floor) and not (estimates and rule.floor_follows_h)
        else rule
        for index, rule in enumerate(rules)
    )


def refresh(optimizer: Base, plan: StepPlan, estimate: Estimate) -> StepPlan:
    """Bring h up to date in a pass of its own, and ask the floors that follow it."""
    for index, target in enumerate(optimizer.targets):
        rule, p = plan.rules[target.layer], target.tensor
        optimizer.allocate(target, rule, plan.storage[target.layer])
        for start, end in chunks(p.numel(), p.device):
            span = slice(start, end)
            state = optimizer.read_state(index, rule, span)
            assert isinstance(rule, HeleneRule)
            observed = rule.observe(state, estimate(index, start, end, None))
            optimizer.write_state(index, plan, span, state, observed)
    asked = [(i, r) for i, r in enumerate(plan.rules) if isinstance(r, HeleneRule) and callable(r.floor)]
    return plan.with_floors({index: _floor(optimizer, index, rule, plan.step) for index, rule in asked})


def _floor(optimizer: Base, index: int, rule: HeleneRule, step: int) -> float:
    """λ_i of a layer, asked again where its rule, or h (else the layer's size), is not that of the last time."""
    dimension = optimizer.layer_dimension(index)
    of_step = rule.last_estimate(step) if rule.floor_follows_h else 0
    key = rule.floor, of_step if rule.floor_follows_h else dimension
    held: Any = optimizer.known_floors.get(index)
    if held is None or held[0] != key:
        value = _ask(optimizer, index, rule, dimension, of_step) if dimension else 1.0  # nothing is floored
        held = optimizer.known_floors[index] = key, value
    return float(held[1])


def _ask(optimizer: Base, index: int, rule: HeleneRule, dimension: int, step: int) -> float:
    name = optimizer.layer_name(index)
    value = float(rule.floor(Layer(name, index, dimension, step, lambda: _curvature(optimizer, index, rule, step))))  # type: ignore[operator]
    if not 0.0 < value < math.inf:
        raise ValueError(
            f"the floor of {name} is {value} by {rule.floor!r} at step {step}, it must be positive and finite: many h "
            "are 0 there; a constant, a mean or a higher quantile is not"
        )
    return value


def _curvature(optimizer: Base, layer: int, rule: HeleneRule, step: int) -> list[Tensor]:
    """h of a layer's parameters as it is read, flat."""
    return [
        rule.read(step, optimizer.read_state(index, rule, slice(0, target.tensor.numel())), torch.empty(()))
        for index, target in enumerate(optimizer.targets)
        if target.layer == layer
    ]
