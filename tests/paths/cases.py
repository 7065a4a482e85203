"""A case: a method, its options, what happens during the run. Plain data: it can be sent, printed, made smaller."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

import helene
from helene.methods import ENTRIES
from helene.steps.first import FirstOrder
from tests.paths import models

STEPS = 12


def halving(step: int) -> float:
    """A schedule."""
    return 0.02 * 0.9**step


def half_of_the_largest(layer: Any) -> float:
    """A floor that is a function of h."""
    return 0.5 * float(layer.curvature().max()) + 1e-6


@dataclass(frozen=True)
class Event:
    """Something that happens before a step.

    Kinds: "set" (group or None for all, key, value), "freeze" and "unfreeze" (start of a name), "reload" ("same": a new
    optimizer made alike takes the state_dict; "bare": one made with required arguments only; "itself"; "narrow": with
    its first state tensor in bfloat16), "nan" and "steep": the step's loss is nan, or its slope infinite
    (`models.spoiled`); such a step is the last.
    """

    step: int
    kind: str
    what: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Case:
    """One configuration.

    Attributes:
        method: Name of a class of `helene`.
        options: Its arguments.
        model: Name of a model.
        dtype: Of its parameters.
        groups: Own options of each layer's group; empty for a single group.
        frozen: Starts of the names of parameters that are frozen when the optimizer is made.
        events: What happens in between.
        steps: Number of steps.
    """

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    model: str = "tied"
    dtype: str = "float32"
    groups: tuple[Mapping[str, Any], ...] = ()
    frozen: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()
    steps: int = STEPS

    @property
    def first_order(self) -> bool:
        return issubclass(getattr(helene, self.method), FirstOrder)

    @property
    def asked(self) -> set[str]:
        """Words of which a refusal must have one: what the case sets, or that the run was loaded or frozen."""
        keys = {*self.options, *(key for group in self.groups for key in group), self.method, self.source(self.steps)}
        for event in self.events:
            words = {event.kind, "state_dict", "parameters", "gradient", "finite", "frozen"}
            keys |= {event.what[1]} if event.kind == "set" else words
        return keys

    @property
    def narrow(self) -> bool:
        """Whether weights have 16 bits."""
        return self.dtype in ("bfloat16", "float16")

    @property
    def eps(self) -> float:
        """The largest of the run."""
        later = [{e.what[1]: e.what[2]} for e in self.events if e.kind == "set"]
        return max([1e-3, *(own["eps"] for own in (self.options, *self.groups, *later) if "eps" in own)])

    def as_one_layer(self) -> Case:
        """The same with every option for the whole model: for a path that takes no groups."""
        own = {key: value for group in self.groups for key, value in group.items()}
        events = tuple(replace(e, what=(None, *e.what[1:])) if e.kind == "set" else e for e in self.events)
        return replace(self, options={**self.options, **own}, groups=(), events=events)

    def source(self, step: int) -> str:
        """The curvature source of a step."""
        found = self.options.get("curvature", "sampled_labels" if self.method == "SophiaG" else "spsa")
        later = [e.what[2] for e in self.events if e.kind == "set" and e.what[1] == "curvature" and e.step <= step]
        return str(later[-1] if later else found)


REQUIRED = {e.cls: e.arguments(anneal_horizon=6.0, batch_size=8) for e in ENTRIES if not e.fixed}


def make_model(case: Case, device: str = "cpu") -> nn.Module:
    model = models.make(case.model, getattr(torch, case.dtype), device)
    for name, p in model.named_parameters():
        p.requires_grad_(not any(name.startswith(start) for start in case.frozen))
    return model


def params_of(case: Case, model: nn.Module) -> Any:
    """Named parameters, or a group a layer."""
    if not case.groups:
        return list(model.named_parameters())
    groups = []
    for prefixes, own in zip(models.LAYERS[case.model], case.groups, strict=False):
        named = [(n, p) for n, p in model.named_parameters() if n.split(".")[0] in prefixes]
        groups.append({"params": named, "layer": prefixes[0], **own})
    return groups


def make_optimizer(case: Case, module: nn.Module, *, bare: bool = False, **more: Any) -> Any:
    """The case's optimizer; a bare one has required arguments only."""
    options = REQUIRED.get(case.method, {}) if bare else case.options
    options = {**options, **more}
    if bare and case.groups:
        case = Case(case.method, model=case.model, groups=tuple({} for _ in case.groups))
    return getattr(helene, case.method)(params_of(case, module), **options)


def happen(event: Event, case: Case, model: nn.Module, optimizer: Any, remake: Callable[..., Any]) -> Any:
    """Make an event happen; the optimizer that goes on."""
    if event.kind == "set":
        group, key, value = event.what
        chosen = optimizer.param_groups if group is None else [optimizer.param_groups[group]]
        for each in chosen:
            each[key] = value
    elif event.kind in ("freeze", "unfreeze"):
        for name, p in model.named_parameters():
            if name.startswith(event.what[0]):
                p.requires_grad_(event.kind == "unfreeze")
    elif event.kind == "reload":
        saved = optimizer.state_dict()
        if event.what[0] == "narrow":
            saved["state"] = {i: dict(state) for i, state in saved["state"].items()}
            wide = [
                (s, k) for s in saved["state"].values() for k, v in s.items() if v.dtype == torch.float32 and v.dim()
            ]
            for state, name in [(s, k) for s, k in wide if f"{k}_scale" not in s and "_scale" not in k][:1]:
                state[name] = state[name].bfloat16()
        if event.what[0] != "itself":
            optimizer = remake(bare=event.what[0] == "bare")
        optimizer.load_state_dict(saved)
    return optimizer


@dataclass
class Run:
    """What came of a case on a path.

    Attributes:
        params: Parameters at the end, flat, by name.
        state: State at the end, flat and decoded, by (name, key).
        kinds: How that is stored.
        losses: What `step` returned.
        refused: The error that ended it, with its class; empty where none did.
        how: By which modes and for which reasons steps were made.
        path: How far each parameter went: Σ |θ_t − θ_{t−1}|, where it was watched.
        slopes: What each step measured, by its number.
        flip: Where steps moved by the slopes of another run: by what share the losses of probes were off.
    """

    params: dict[str, torch.Tensor] = field(default_factory=dict)
    state: dict[tuple[str, str], torch.Tensor] = field(default_factory=dict)
    kinds: dict[tuple[str, str], str] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    refused: str = ""
    how: set[tuple[str, str]] = field(default_factory=set)
    path: dict[str, float] = field(default_factory=dict)
    slopes: dict[int, list[float]] = field(default_factory=dict)
    flip: float = 0.0
