"""ZO-SGD-Sign, elementwise and as the benchmark's code has it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

import torch
from torch import Tensor

from helene import functional
from helene.optimizers.base import LearningRate, Updates
from helene.optimizers.zeroth import Directions, ZerothOrder


class ZOSign(ZerothOrder):
    r"""ZO-SGD-Sign, elementwise (ZO-signSGD, Liu et al. 2019, algorithm 1).

    theta ← theta − lr · weight_decay · theta,  theta ← theta − lr · sign(g),  g the SPSA gradient.

    Cost of a step: 2 forwards, 3 draws of z, 3 passes over the parameters; no state. Every weight moves by lr, whatever
    the loss: with one direction, only the sign of c and those of z enter. lr is the middle of the ZO-LLM grid.

    Args:
        params: Parameters, named parameters or groups of either; a group is a layer.
        lr: Learning rate, a number or a function of the step (the first is 1).
        options: See `ZerothOrder`.
    """

    def __init__(self, params: Iterable[Any], lr: LearningRate = 1e-6, **options: Unpack[Directions]) -> None:
        super().__init__(params, {"lr": lr}, options)

    def _update(
        self, group: dict[str, Any], theta: Tensor, g: Tensor, state: Updates, estimate: Tensor | None
    ) -> tuple[Tensor, Updates]:
        return functional.sign_step(theta, g, lr=group["lr"], weight_decay=group["weight_decay"]), {}


class ZOScalarSign(ZerothOrder):
    r"""theta ← theta − lr (sign(c) z + weight_decay · theta): the sign of the scalar, not of the elements.

    What the ZO-LLM code runs under the name of ZO-SGD-Sign; with several directions, the mean of sign(c_j) z_j. Cost
    and arguments as for `ZOSign`; on the sphere, one draw of z more a direction.

    Args:
        params: Parameters, named parameters or groups of either; a group is a layer.
        lr: Learning rate, a number or a function of the step (the first is 1).
        options: See `ZerothOrder`.
    """

    def __init__(self, params: Iterable[Any], lr: LearningRate = 1e-6, **options: Unpack[Directions]) -> None:
        super().__init__(params, {"lr": lr}, options)

    def _measure(self, closure: Any, step: int) -> tuple[list[float], Tensor]:
        slopes, loss = super()._measure(closure, step)
        signs, q = torch.tensor(slopes, dtype=torch.float64).sign().tolist(), self.param_groups[0]["num_directions"]
        directions = [self._direction(step, draw) for draw in range(q)]
        lengths = [self._length(direction, block) for direction in directions for block in range(len(self._probes))]
        return [sign * length / q for sign, length in zip(signs, lengths, strict=True)], loss

    def _update(
        self, group: dict[str, Any], theta: Tensor, g: Tensor, state: Updates, estimate: Tensor | None
    ) -> tuple[Tensor, Updates]:
        return functional.sgd_step(theta, g, lr=group["lr"], weight_decay=group["weight_decay"]), {}
