"""ZO-SGD-Sign, elementwise and as the benchmark's code has it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

import torch

from helene.evaluation.losses import Closure
from helene.rules import SGDRule, SignRule
from helene.steps.base import LearningRate
from helene.steps.measurement import Measured, Pairs
from helene.steps.plan import Probing, StepPlan
from helene.steps.zeroth import Directions, ZerothOrder


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

    RULE = SignRule

    def __init__(self, params: Iterable[Any], lr: LearningRate = 1e-6, **options: Unpack[Directions]) -> None:
        super().__init__(params, {"lr": lr}, options)


class SlopeSigns(Pairs):
    """The sign of each slope in the place of its size."""

    def measure(self, optimizer: Any, closure: Closure, plan: StepPlan) -> Measured:
        """See `Measurement`."""
        slopes, loss = self.slopes(optimizer, closure, plan)
        signs, probing = torch.tensor(slopes, dtype=torch.float64).sign().tolist(), plan.probing
        assert isinstance(probing, Probing)
        directions = [optimizer.direction(plan, draw) for draw in range(probing.num_directions)]
        lengths = [optimizer.length(plan, z, block) for z in directions for block in range(optimizer.num_blocks)]
        scalars = [sign * length / probing.num_directions for sign, length in zip(signs, lengths, strict=True)]
        return Measured(scalars, loss)


class ZOScalarSign(ZerothOrder):
    r"""theta ← theta − lr (sign(c) z + weight_decay · theta): the sign of the scalar, not of the elements.

    What the ZO-LLM code runs under the name of ZO-SGD-Sign; with several directions, the mean of sign(c_j) z_j. Cost
    and arguments as for `ZOSign`; on the sphere, one draw of z more a direction.

    Args:
        params: Parameters, named parameters or groups of either; a group is a layer.
        lr: Learning rate, a number or a function of the step (the first is 1).
        options: See `ZerothOrder`.
    """

    RULE = SGDRule
    MEASUREMENT = SlopeSigns()

    def __init__(self, params: Iterable[Any], lr: LearningRate = 1e-6, **options: Unpack[Directions]) -> None:
        super().__init__(params, {"lr": lr}, options)
