"""ZO-SGD-Cons: a step is taken only if it lowers the loss."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Unpack

import torch
from torch import Tensor

from helene import functional
from helene.optimizers.base import Chunk, LearningRate, Updates
from helene.optimizers.zeroth import Directions, ZerothOrder
from helene.probe import Closure


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

    def __init__(self, params: Iterable[Any], lr: LearningRate = 1e-6, **options: Unpack[Directions]) -> None:
        super().__init__(params, {"lr": lr}, options)

    def forwards_at(self, step: int) -> int:
        """Forwards that a step makes."""
        return super().forwards_at(step) + (3 if self.param_groups[0]["two_sided"] else 2)

    def _measure(self, closure: Closure, step: int) -> tuple[list[float], Tensor]:
        coefficients, loss = super()._measure(closure, step)
        here = self._loss(closure) if self.param_groups[0]["two_sided"] else loss
        move = _Move(self, self._combination(step, coefficients))
        choice, least = 0.0, here.item()
        for side in (1.0, -1.0):
            try:
                value = self._probe.loss(closure, move, -side).item()
            except FloatingPointError:
                value = math.inf
            if value < least:
                choice, least = side, value
        return [*coefficients, choice], loss

    def _num_scalars(self, step: int) -> int:
        return super()._num_scalars(step) + 1

    def _gradient(self, step: int, scalars: list[float]) -> Chunk:
        return self._combination(step, [scalars[-1] * c for c in self._coefficients(scalars)])

    def _update(
        self, group: dict[str, Any], theta: Tensor, g: Tensor, state: Updates, estimate: Tensor | None
    ) -> tuple[Tensor, Updates]:
        moved = functional.descend(theta, g, group["lr"])
        return functional.decay(moved, group["lr"], group["weight_decay"]), {}


class _Move:
    """lr · g as a displacement."""

    def __init__(self, optimizer: ZOConservative, gradient: Chunk) -> None:
        self.gradient = gradient
        groups = zip(optimizer._targets, optimizer._groups, strict=True)
        self.known = {target.id: (index, float(group["lr"])) for index, (target, group) in enumerate(groups)}

    def chunk(
        self, parameter: int, start: int, end: int, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        index, lr = self.known[parameter]
        return self.gradient(index, start, end).to(dtype).mul_(lr)
