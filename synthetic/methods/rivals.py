"""Other zeroth-order methods, on the arithmetic of `helene.functional`."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

import helene
from helene import functional
from helene.methods import Entry
from helene.rules import CurvatureRule, Rule, SophiaRule
from helene.rules.curved import SophiaState
from synthetic.methods.base import Given, Scale, Signal, State, Trial
from synthetic.methods.zeroth import MeZO, OneDirectionPerLayer, shared
from synthetic.problems.base import Problem


class Simulated(MeZO):
    """An optimizer of `helene.methods` along the SPSA gradient, by its rule: lr in natural units, the rest as it is."""

    commutes_with_turns = False

    def __init__(self, entry: Entry) -> None:
        self.name, self._unit_step = entry.grid_name, entry.unit_step
        self._rule: type[Rule] = getattr(helene, entry.cls).RULE
        kinds = {field.name: type(field.default) for field in fields(self._rule)}
        assert entry.scaling is not None
        self._kinds: dict[str, Any] = {name: kinds[name] for name in entry.scaling.space if name != "log2_q"}

    def settings(self, trial: Trial, scale: Scale, problem: Problem) -> dict[str, float | Tensor]:
        """See `Method`: lr = q / (tr H + 2 λ_max), times ‖g_0‖ where a step is about lr whatever the loss."""
        size = math.sqrt(scale.curvature) if self._unit_step else 1.0
        return {"lr": trial["q"] * size / scale.trace, **{name: trial[name] for name in self._kinds}}

    def start(self, x: Tensor) -> State:
        """See `Method`."""
        rule = self._rule
        return {name: torch.full_like(x, rule.INITIAL.get(name, 0.0)) for name in rule.State._fields}

    def move(self, x: Tensor, state: State, signal: Signal, given: Given) -> Tensor:
        """See `Method`."""
        settings: Any = {
            name: value if isinstance(value := given[name], Tensor) else kind(value)
            for name, kind in self._kinds.items()
        }
        rule, g = self._rule(lr=given["lr"], **settings), signal.c * signal.z
        estimate = rule.estimate(signal.step, g) if isinstance(rule, CurvatureRule) else None
        x, kept = rule.update(signal.step, x, g, rule.State(**state), estimate)
        state.update(kept._asdict())
        return x


class ZOSophia(MeZO):
    """Sophia on the SPSA gradient, h from A-GNB with B = 1: the update is clipped, not the curvature floored."""

    name = "zo_sophia"
    commutes_with_turns = False
    unchanged = ("beta1", "beta2", "interval", "denominator_eps")  # settings that are absolute in a trial already

    def settings(self, trial: Trial, scale: Scale, problem: Problem) -> dict[str, float | Tensor]:
        r"""See `Method`: with q' = q / √clip_ratio, unclipped first steps are those of MeZO at q'.

        Sophia's clip is 1, so a coordinate moves by at most lr = clip_ratio q' ‖g_0‖ / (tr H + 2 λ_max); where it is
        not clipped it moves by (lr / gamma) m / h, so gamma = lr (tr H + 2 λ_max) / (q' h_0). The square root brings
        the best q of different clips together.
        """
        q = trial["q"] / math.sqrt(trial["clip_ratio"])
        lr = trial["clip_ratio"] * q * math.sqrt(scale.curvature) / scale.trace
        gamma = lr * scale.trace / (q * scale.curvature)
        return {"lr": lr, "gamma": gamma, **{name: trial[name] for name in self.unchanged}}

    def start(self, x: Tensor) -> State:
        """See `Method`."""
        return {"m": torch.zeros_like(x), "h": torch.zeros_like(x)}

    def move(self, x: Tensor, state: State, signal: Signal, given: Given) -> Tensor:
        """See `Method`."""
        settings: Any = {name: shared(given, name) for name in ("beta1", "beta2", "denominator_eps")}
        interval, g = int(shared(given, "interval")), signal.c * signal.z
        rule = SophiaRule(lr=given["lr"], gamma=given["gamma"], batch_size=1, interval=interval, **settings)
        kept = SophiaState(state["m"], state["h"], torch.zeros((), dtype=torch.int64))
        x, kept = rule.update(signal.step, x, g, kept, rule.estimate(signal.step, g))
        assert kept.curvature is not None
        state["m"], state["h"] = kept.momentum, kept.curvature
        return x


class OneLayerInTurn(OneDirectionPerLayer):
    """One layer a step, in turn, along its own direction: two forwards a step, n steps a round."""

    name = "per_layer_in_turn"

    def forwards(self, n: int) -> float | None:
        """See `Method`."""
        return 2.0

    def move(self, x: Tensor, state: State, signal: Signal, given: Given) -> Tensor:
        """See `Method`; c of the other layers is dropped, so that they stand."""
        layers = signal.problem.layers
        part = layers.slices()[(signal.step - 1) % layers.n]
        x = x.clone()
        lr = given["lr"][..., :1] if isinstance(given["lr"], Tensor) else given["lr"]
        x[..., part] = functional.descend(x[..., part], signal.z[..., part], lr * signal.c[..., part])
        return x
