"""ZO-SGD-Cons: a step is taken only if it lowers the loss."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Unpack

import torch
from torch import Tensor

from helene.evaluation.probe import Closure, finite
from helene.rules import DecayLastRule
from helene.steps.base import LearningRate
from helene.steps.measurement import Chunk, Measured, Pairs
from helene.steps.plan import Probing, StepPlan
from helene.steps.zeroth import Directions, ZerothOrder


class BestOfThree(Pairs):
    """The slopes, and which of theta, theta − lr g and theta + lr g has the lowest loss: 0, 1 or −1."""

    sums_directions = False  # a refused step still decays theta

    def forwards(self, probing: Probing, num_blocks: int) -> int:
        """See `Measurement`."""
        return super().forwards(probing, num_blocks) + (3 if probing.two_sided else 2)

    def num_scalars(self, probing: Probing, num_blocks: int) -> int:
        """See `Measurement`."""
        return super().num_scalars(probing, num_blocks) + 1

    def measure(self, optimizer: Any, closure: Closure, plan: StepPlan) -> Measured:
        """See `Measurement`."""
        coefficients, loss = self.slopes(optimizer, closure, plan)
        assert isinstance(plan.probing, Probing)
        here = optimizer.loss_here(closure) if plan.probing.two_sided else loss
        move = _Move(optimizer, plan, optimizer.combination(plan, coefficients))
        choice, least = 0.0, finite(here)[0]
        for side in (1.0, -1.0):
            try:
                value = finite(optimizer.probe.loss(closure, move, -side))[0]
            except FloatingPointError:
                value = math.inf
            if value < least:
                choice, least = side, value
        return Measured([*coefficients, choice], loss)

    def coefficients(self, plan: StepPlan, scalars: list[float]) -> list[float]:
        """See `Measurement`."""
        return scalars[:-1]

    def gradient(self, optimizer: Any, plan: StepPlan, scalars: list[float], sample: Any) -> Chunk:
        """See `Measurement`: g, with the sign of the choice."""
        return optimizer.combination(plan, [scalars[-1] * c for c in scalars[:-1]])


class ZOConservative(ZerothOrder):
    r"""ZO-SGD-Cons: of theta, theta − lr g and theta + lr g, the one with the lowest loss (Kim et al. 2021; ZO-LLM).

    theta ← argmin L over the three, theta itself in a tie; then theta ← theta − lr · weight_decay · theta.

    Cost of a step: 5 forwards (2 for g, 3 for the candidates; 4 if one-sided, where L(theta) is known), 5 draws of z, 5
    passes over the parameters; no state. A candidate is a perturbed copy, so nothing has to be undone: a step that is
    refused leaves theta as it was, bit for bit. A candidate whose loss is not finite is refused. Candidates are rounded
    to nearest, also where the step taken is rounded stochastically. lr is the middle of the ZO-LLM grid.

    Args:
        params: Parameters, named parameters or groups of either; a group is a layer.
        lr: Learning rate, a number or a function of the step (the first is 1).
        options: See `ZerothOrder`.
    """

    RULE = DecayLastRule
    MEASUREMENT = BestOfThree()

    def __init__(self, params: Iterable[Any], lr: LearningRate = 1e-6, **options: Unpack[Directions]) -> None:
        super().__init__(params, {"lr": lr}, options)


class _Move:
    """lr · g as a displacement."""

    def __init__(self, optimizer: Any, plan: StepPlan, gradient: Chunk) -> None:
        self.gradient = gradient
        targets = enumerate(optimizer.targets)
        self.known = {target.id: (index, plan.rules[target.layer].lr) for index, target in targets}

    def chunk(
        self, parameter: int, start: int, end: int, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        index, lr = self.known[parameter]
        return self.gradient(index, start, end).to(dtype).mul_(lr)
