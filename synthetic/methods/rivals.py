"""Other zeroth-order methods, on the arithmetic of `helene.functional`."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from helene import functional
from helene.rules import AdamWRule, SophiaRule
from helene.rules.curved import SophiaState
from helene.rules.plain import AdamState
from synthetic.methods.base import Given, Scale, Signal, State, Trial
from synthetic.methods.zeroth import MeZO, OneDirectionPerLayer, shared
from synthetic.problems.base import Problem


class ZOAdam(MeZO):
    """Adam on the SPSA gradient."""

    name = "zo_adam"
    commutes_with_turns = False
    unchanged = ("beta1", "beta2", "denominator_eps")  # settings that are absolute in a trial already

    def settings(self, trial: Trial, scale: Scale, problem: Problem) -> dict[str, float | Tensor]:
        """See `Method`: lr = q ‖g_0‖ / (tr H + 2 λ_max), for √v starts near ‖g_0‖."""
        size = math.sqrt(scale.curvature)
        return {"lr": trial["q"] * size / scale.trace, **{name: trial[name] for name in self.unchanged}}

    def start(self, x: Tensor) -> State:
        """See `Method`."""
        return {"m": torch.zeros_like(x), "v": torch.zeros_like(x)}

    def move(self, x: Tensor, state: State, signal: Signal, given: Given) -> Tensor:
        """See `Method`."""
        settings: Any = {name: shared(given, name) for name in ("beta1", "beta2", "denominator_eps")}
        rule = AdamWRule(lr=given["lr"], **settings)
        x, kept = rule.update(signal.step, x, signal.c * signal.z, AdamState(state["m"], state["v"]))
        state["m"], state["v"] = kept
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
