"""The floors of an optimizer's layers as numbers: asked when h has changed, kept until it does again."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from helene.evaluation.curvature import Estimate
from helene.evaluation.directions import chunks
from helene.rules import HeleneRule, Rule
from helene.rules.floors import Layer
from helene.steps.plan import StepPlan

if TYPE_CHECKING:
    from helene.steps.layered import Layered


def check(optimizer: Layered, rules: Sequence[Rule]) -> None:
    """Ask the rules that do not look at h, so that a bad one is told when it is given."""
    resolve(optimizer, rules, 0, True)


def resolve(optimizer: Layered, rules: Sequence[Rule], step: int, estimates: bool) -> tuple[Rule, ...]:
    """The rules with their floors as numbers, but for those that follow h where this step estimates it."""
    return tuple(
        replace(rule, floor=_floor(optimizer, index, rule, step))
        if isinstance(rule, HeleneRule) and callable(rule.floor) and not (estimates and rule.floor_follows_h)
        else rule
        for index, rule in enumerate(rules)
    )


def ask(optimizer: Layered, plan: StepPlan, estimate: Estimate) -> StepPlan:
    """Ask the floors that follow h for what they are once this step's estimate is in it; nothing is written."""
    known: dict[int, float] = {}
    for index, rule in enumerate(plan.rules):
        if isinstance(rule, HeleneRule) and callable(rule.floor):
            known[index] = _floor(optimizer, index, rule, plan.step, estimate)
    return plan.with_floors(known)


def known(optimizer: Layered) -> dict[str, list[Any]]:
    """Floors by rule as a state_dict keeps them: by layer, what they were asked at and the number.

    They cannot be asked again where h is stored with less precision than it had when they were asked.
    """
    held = optimizer.known_floors.items()
    return {str(i): [at, v] for i, ((rule, at), v) in held if rule == optimizer.param_groups[i].get("floor")}


def check_known(kept: Any, num_layers: int) -> None:
    """Raise ValueError unless this is what `known` gives of so many layers."""
    try:
        fits = all(0 <= int(i) < num_layers and int(at) == at and 0 < v < math.inf for i, (at, v) in kept.items())
    except (AttributeError, TypeError, ValueError):
        fits = False
    if not fits:
        raise ValueError(
            f"the state_dict has the floors {kept!r}, they must be positive and finite numbers of {num_layers} layers; "
            "take a whole state_dict or checkpoint, or one without the entry 'floors', so that floors are asked anew"
        )


def take(optimizer: Layered, kept: Mapping[str, Sequence[Any]]) -> None:
    """Know what `known` gave."""
    for i, (at, value) in kept.items():
        optimizer.known_floors[int(i)] = (optimizer.param_groups[int(i)].get("floor"), at), value


def _floor(optimizer: Layered, layer: int, rule: HeleneRule, step: int, estimate: Estimate | None = None) -> float:
    """λ_i of a layer, asked again where its rule, or h (else the layer's size), is not that of the last time."""
    dimension = optimizer.layer_dimension(layer)
    of_step = rule.last_estimate(step) if rule.floor_follows_h else 0
    key = rule.floor, of_step if rule.floor_follows_h else dimension
    held: Any = optimizer.known_floors.get(layer)
    if held is None or held[0] != key or estimate is not None:
        value = _asked(optimizer, layer, rule, of_step, estimate) if dimension else 1.0  # nothing is floored
        held = optimizer.known_floors[layer] = key, value
    return float(held[1])


def _asked(optimizer: Layered, layer: int, rule: HeleneRule, step: int, estimate: Estimate | None) -> float:
    name, dimension = optimizer.layer_name(layer), optimizer.layer_dimension(layer)
    asked = Layer(name, layer, dimension, step, lambda: _curvature(optimizer, layer, rule, step, estimate))
    value = float(rule.floor(asked))  # type: ignore[operator]
    if not 0.0 < value < math.inf:
        raise ValueError(
            f"the floor of {name} is {value} by {rule.floor!r} at step {step}, it must be positive and finite: many h "
            "are 0 there; a constant, a mean or a higher quantile is not"
        )
    return value


def _curvature(optimizer: Layered, layer: int, rule: HeleneRule, step: int, estimate: Estimate | None) -> list[Tensor]:
    """h of a layer's parameters as it is read, flat: with the estimate in it, before that is stored."""
    found = []
    for index, target in enumerate(optimizer.targets):
        if target.layer != layer or not target.tensor.numel():
            continue
        size, device = target.tensor.numel(), target.tensor.device
        pieces = []
        for start, end in chunks(size, device):
            state = optimizer.read_state(index, rule, slice(start, end))
            state = rule.observe(state, estimate and estimate(index, start, end, None))
            pieces.append(rule.read(step, state, torch.empty((), device=device)))
        found.append(torch.cat(pieces) if len(pieces) != 1 else pieces[0])
    return found
