"""FZOO: several one-sided Rademacher directions, the step scaled by the spread of their losses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor, nn

from helene import functional
from helene.optimizers import checks
from helene.optimizers.base import Base, LearningRate, Options, Updates
from helene.optimizers.zeroth import MAX_DIRECTIONS, ZerothOrder
from helene.probe import Closure


class FZOOOptions(Options, total=False):
    """Keyword arguments of `FZOO`; its directions are one-sided, Rademacher and common to all layers."""

    eps: float
    num_directions: int
    model: nn.Module | None


class FZOO(ZerothOrder):
    r"""Normalised ZO-SGD (Dang et al. 2025), with z_i of elements ±1 and L_i = L(theta + eps z_i):

        g = (1/N) Σ_i (L_i − L(theta)) z_i / σ,  σ the standard deviation (over N − 1) of the L_i
        theta ← theta − lr (g + weight_decay · theta)

    The slopes (L_i − L) / eps divided by their own spread σ / eps: eps cancels, the step is free of the loss's scale
    and a weight moves by about lr/√N. (Where g is written with a factor 1/eps that σ does not have, the same step has
    learning rate lr · eps.) Cost of a step: N + 1 forwards, 2 N draws of z, N + 1 passes over the parameters; no
    state. Defaults are the published ones (lr 5e-5, eps 1e-4, N 8).

    Departure: the N forwards run one after the other; batching them into one is a matter of speed.

    Args:
        params: Parameters, named parameters or groups of either; a group is a layer.
        lr: Learning rate, a number or a function of the step (the first is 1).
        options: ``num_directions`` (N, >= 2), ``eps``, ``model``, see `ZerothOrder`, and those of
            `helene.optimizers.base.Base`.
    """

    _FIXED: ClassVar[Mapping[str, Any]] = {
        "two_sided": False,
        "distribution": "rademacher",
        "direction_per_layer": False,
    }
    _OPTIONS: ClassVar[Mapping[str, Any]] = {
        **Base._OPTIONS,
        "eps": 1e-4,
        "num_directions": 8,
        "model": None,
    }

    def __init__(self, params: Iterable[Any], lr: LearningRate = 5e-5, **options: Unpack[FZOOOptions]) -> None:
        super().__init__(params, {"lr": lr, **self._FIXED}, options)

    def _measure(self, closure: Closure, step: int) -> tuple[list[float], Tensor]:
        hyper, here = self.param_groups[0], self._loss(closure)
        directions = [self._direction(step, draw) for draw in range(hyper["num_directions"])]
        losses = [self._probe.loss(closure, direction, hyper["eps"]) for direction in directions]
        *values, base = torch.stack([*losses, here]).double().tolist()
        return functional.fzoo_weights(values, base), here

    def _update(
        self, group: dict[str, Any], theta: Tensor, g: Tensor, state: Updates, estimate: Tensor | None
    ) -> tuple[Tensor, Updates]:
        return functional.sgd_step(theta, g, lr=group["lr"], weight_decay=group["weight_decay"]), {}

    def _check(self, group: dict[str, Any]) -> None:
        super()._check(group)
        checks.whole(group["num_directions"], "num_directions", 2, MAX_DIRECTIONS, "a spread needs two; 8 is published")
