"""Methods that see losses only, on the arithmetic of `helene.functional`."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from helene import functional
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

    def move(self, x: Tensor, state: State, signal: Signal, given: Given) -> Tensor:
        """See `Method`; between estimates h stands, so its part of the preconditioner is kept."""
        beta1, beta2, interval, horizon, denominator_eps = (
            shared(given, name) for name in ("beta1", "beta2", "interval", "horizon", "denominator_eps")
        )
        alpha = functional.anneal(signal.step, beta1, horizon)
        state["m"] = functional.momentum(state["m"], signal.z, beta1, alpha * signal.c)
        if functional.is_curvature_step(signal.step, int(interval)):
            estimate = functional.a_gnb(signal.z, given["batch_size"] * signal.c.square())
            state["h"] = functional.curvature_ema(state["h"], estimate, beta2)
            one, h = torch.ones((), dtype=x.dtype), self.curvature_used(state["h"], signal.step)
            state["per_m"] = functional.precondition(one, h, given["gamma"], given["floor"], denominator_eps)
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
