"""Lion, on SPSA gradients and on gradients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from helene.rules import LionRule
from helene.steps.base import LearningRate, Options
from helene.steps.first import FirstOrder
from helene.steps.zeroth import Directions, ZerothOrder


class ZOLion(ZerothOrder):
    r"""Lion (Chen et al. 2023, algorithm 2) on the SPSA gradient.

        theta ← theta − lr · weight_decay · theta
        theta ← theta − lr · sign(beta1 m + (1 − beta1) g),  then  m ← beta2 m + (1 − beta2) g

    Cost of a step: 2 forwards, 3 draws of z, 3 passes over the parameters. State: m. The betas are the paper's; it
    advises a third to a tenth of Adam's learning rate, so lr is a tenth of `ZOAdam`'s.

    Args:
        params: Parameters, named parameters or groups of either; a group is a layer.
        lr: Learning rate, a number or a function of the step (the first is 1).
        beta1: Weight of m in the step, in [0, 1).
        beta2: EMA of g, in [0, 1).
        options: See `ZerothOrder`.
    """

    RULE = LionRule

    def __init__(
        self,
        params: Iterable[Any],
        lr: LearningRate = 1e-7,
        *,
        beta1: float = 0.9,
        beta2: float = 0.99,
        **options: Unpack[Directions],
    ) -> None:
        super().__init__(params, {"lr": lr, "beta1": beta1, "beta2": beta2}, options)


class Lion(FirstOrder):
    r"""`ZOLion`'s equations on the gradient, with the paper's defaults (lr 1e-4, no decay).

    Cost of a step: 1 forward, 1 backward, 1 pass over the parameters. State: m.

    Args:
        params: Parameters, named parameters or groups of either; a group is a layer.
        lr: Learning rate, a number or a function of the step (the first is 1).
        beta1: Weight of m in the step, in [0, 1).
        beta2: EMA of g, in [0, 1).
        options: See `helene.steps.base.Base`.
    """

    RULE = LionRule

    def __init__(
        self,
        params: Iterable[Any],
        lr: LearningRate = 1e-4,
        *,
        beta1: float = 0.9,
        beta2: float = 0.99,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, {"lr": lr, "beta1": beta1, "beta2": beta2}, options)
