"""Methods that see losses only, on the arithmetic of `helene.functional`."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from helene import functional
from helene.rules import HeleneRule
from helene.rules.curved import HeleneState
from synthetic.methods.base import Given, Scale, Signal, State, Trial
from synthetic.problems.base import Problem


class MeZO:
    """theta ← theta − lr c z: SPSA with one direction for all layers (the negative control)."""

    name = "mezo"
    directions: Literal["none", "shared", "per_layer"] = "shared"
    commutes_with_turns = True

    def supports(self, problem: Problem, trial: Trial) -> str | None:
        """See `Method`."""
        return None

    def forwards(self, n: int) -> float | None:
        """See `Method`."""
        return 2.0

    def settings(self, trial: Trial, scale: Scale, problem: Problem) -> dict[str, float | Tensor]:
        """See `Method`: lr = q / (tr H + 2 λ_max)."""
        return {"lr": trial["q"] / scale.trace}

    def start(self, x: Tensor) -> State:
        """See `Method`."""
        return {}

    def move(self, x: Tensor, state: State, signal: Signal, given: Given) -> Tensor:
        """See `Method`."""
        return functional.descend(x, signal.z, given["lr"] * signal.c)


class OneDirectionPerLayer(MeZO):
    """Each layer has its own pair of probes, so its own projected gradient (the positive control)."""

    name = "per_layer"
    directions: Literal["none", "shared", "per_layer"] = "per_layer"

    def forwards(self, n: int) -> float | None:
        """See `Method`."""
        return 2.0 * n

    def settings(self, trial: Trial, scale: Scale, problem: Problem) -> dict[str, float | Tensor]:
        """See `Method`: lr = q / max_i (tr H_ii + 2 λ_max,i)."""
        return {"lr": trial["q"] / scale.layer_trace}


class HeavyBall(MeZO):
    """MeZO with momentum: m ← beta1 m + c z, theta ← theta − lr m."""

    name = "heavy_ball"

    def settings(self, trial: Trial, scale: Scale, problem: Problem) -> dict[str, float | Tensor]:
        """See `Method`: lr = q (1 − beta1) / (tr H + 2 λ_max)."""
        beta1 = trial["beta1"]
        return {"lr": trial["q"] * (1.0 - beta1) / scale.trace, "beta1": beta1}

    def start(self, x: Tensor) -> State:
        """See `Method`."""
        return {"m": torch.zeros_like(x)}

    def move(self, x: Tensor, state: State, signal: Signal, given: Given) -> Tensor:
        """See `Method`."""
        state["m"] = functional.momentum(state["m"], signal.z, shared(given, "beta1"), signal.c)
        return functional.descend(x, state["m"], given["lr"])


class Helene(MeZO):
    """Algorithm 1 with h from this step's SPSA gradient, B = 1 since the loss is deterministic."""

    name = "helene"
    commutes_with_turns = False
    _held: tuple[Given, HeleneRule] | None = None

    def settings(self, trial: Trial, scale: Scale, problem: Problem) -> dict[str, float | Tensor]:
        """See `Method`: floor = ratio h_0, lr = q (1 − beta1) gamma floor / (tr H + 2 λ_max)."""
        floor, beta1, gamma = trial["floor_ratio"] * scale.curvature, trial["beta1"], trial["gamma"]
        return {
            "lr": trial["q"] * (1.0 - beta1) * gamma * floor / scale.trace,
            "beta1": beta1,
            "beta2": trial["beta2"],
            "interval": trial["interval"],
            "gamma": gamma,
            "floor": floor,
            "denominator_eps": trial["denominator_eps"],
            "batch_size": trial["batch_size"],
            "horizon": scale.horizon,
        }

    def start(self, x: Tensor) -> State:
        """See `Method`."""
        return {"m": torch.zeros_like(x), "h": torch.zeros_like(x)}

    def rule(self, given: Given) -> HeleneRule:
        """The rule of all trials, kept while the settings stay what they are."""
        if self._held is None or self._held[0] is not given:
            one = {name: shared(given, name) for name in ("beta1", "beta2", "horizon", "denominator_eps")}
            self._held = (
                given,
                HeleneRule(
                    lr=given["lr"],
                    anneal_horizon=one.pop("horizon"),
                    interval=int(shared(given, "interval")),
                    batch_size=torch.as_tensor(given["batch_size"]),
                    gamma=given["gamma"],
                    floor=given["floor"],
                    **one,  # type: ignore[arg-type]
                ),
            )
        return self._held[1]

    def move(self, x: Tensor, state: State, signal: Signal, given: Given) -> Tensor:
        """See `Method`; between estimates h stands, so its part of the preconditioner is kept."""
        rule = self.rule(given)
        state["m"] = functional.momentum(state["m"], signal.z, rule.beta1, rule.alpha(signal.step) * signal.c)
        if rule.estimates_at(signal.step):
            estimate = functional.a_gnb(signal.z, given["batch_size"] * signal.c.square())
            kept = rule.observe(HeleneState(state["m"], state["h"]), estimate)
            state["h"] = kept.curvature
            used = self.curvature_used(kept.curvature, signal.step)
            state["per_m"] = rule.factor(signal.step, kept._replace(curvature=used))
        return functional.descend(x, state["m"] * state["per_m"], given["lr"])

    def curvature_used(self, h: Tensor, step: int) -> Tensor:
        """What the preconditioner reads in the place of h; a control changes it."""
        return h


def shared(given: Given, name: str) -> float:
    """A setting that must be one number for all trials of a run."""
    value = given[name]
    if isinstance(value, Tensor):
        raise ValueError(f"{name} must be the same in all trials of a run, got {value.flatten().tolist()}")
    return value
