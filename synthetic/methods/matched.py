"""Matched controls: what else could explain a win of HELENE. Each changes one thing."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from helene import functional
from synthetic.methods.base import Given, Scale, Signal, State, Trial
from synthetic.methods.zeroth import Helene, MeZO
from synthetic.problems.base import Problem


class HeleneMean(Helene):
    """HELENE with h replaced by its mean over all coordinates: what is left is one adaptive step size."""

    name = "helene_mean"

    def curvature_used(self, h: Tensor, step: int) -> Tensor:
        """See `Helene`."""
        return h.mean(-1, keepdim=True)


class HeleneShuffled(Helene):
    """HELENE with h shuffled over the coordinates, anew at each estimate: the same numbers, told of others."""

    name = "helene_shuffled"

    def curvature_used(self, h: Tensor, step: int) -> Tensor:
        """See `Helene`."""
        order = np.random.default_rng([step, h.shape[-1]]).permutation(h.shape[-1])
        return h[..., torch.from_numpy(order)]


class HeleneLayerFloors(Helene):
    r"""HELENE with λ_i in proportion to the power ``p`` of the layer's curvature, told by an oracle."""

    name = "helene_layer_floors"

    def settings(self, trial: Trial, scale: Scale, problem: Problem) -> dict[str, float | Tensor]:
        """See `Method`: the floor of a layer over the mean one is (its λ_max over the mean one)^p."""
        plain = super().settings(trial, scale, problem)
        factors, anchor = layer_factors(problem, trial["p"])
        plain["floor"] = float(plain["floor"]) / problem.layers.per_coordinate(factors)
        plain["lr"] = float(plain["lr"]) * scale.trace / anchor
        return plain


class LayerSteps(MeZO):
    r"""MeZO with step sizes in proportion to the power ``−p`` of the layer's curvature: no curvature is estimated."""

    name = "mezo_layer_steps"

    def settings(self, trial: Trial, scale: Scale, problem: Problem) -> dict[str, float | Tensor]:
        """See `Method`."""
        factors, anchor = layer_factors(problem, trial["p"])
        return {"lr": trial["q"] / anchor * problem.layers.per_coordinate(factors)}


class GrowingStep(MeZO):
    """MeZO with a step size that grows, by ``growth`` over the steps expected of it, then stands."""

    name = "mezo_growing"

    def settings(self, trial: Trial, scale: Scale, problem: Problem) -> dict[str, float | Tensor]:
        """See `Method`."""
        plain = super().settings(trial, scale, problem)
        return {**plain, "growth": trial["growth"], "horizon": scale.horizon}

    def move(self, x: Tensor, state: State, signal: Signal, given: Given) -> Tensor:
        """See `Method`."""
        part = min(1.0, signal.step / float(given["horizon"]))
        lr = given["lr"] * given["growth"] ** part
        return functional.descend(x, signal.z, lr * signal.c)


def layer_factors(problem: Problem, p: float) -> tuple[list[float], float]:
    """Relative step sizes (λ_max,i / geometric mean)^−p, and the anchor tr(D H) + 2 max_i d_i λ_max,i with them."""
    tops, traces = problem.constants.layer_top, problem.constants.layer_trace
    middle = math.exp(sum(math.log(top) for top in tops) / len(tops))
    factors = [(top / middle) ** -p for top in tops]
    anchor = sum(f * t for f, t in zip(factors, traces, strict=True))
    return factors, anchor + 2.0 * max(f * top for f, top in zip(factors, tops, strict=True))
