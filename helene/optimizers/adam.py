"""Adam and AdamW, on SPSA gradients and on gradients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Unpack

from helene.rules import AdamRule, AdamWRule, Rule
from helene.steps.base import LearningRate, Options
from helene.steps.first import FirstOrder
from helene.steps.zeroth import Directions, ZerothOrder


class ZOAdam(ZerothOrder):
    r"""Adam (Kingma and Ba 2015, algorithm 1) on the SPSA gradient, decay coupled as in torch.optim.Adam.

        g ← g + weight_decay · theta
        m ← beta1 m + (1 − beta1) g,  v ← beta2 v + (1 − beta2) g²
        theta ← theta − lr · (m / (1 − beta1^t)) / (√(v / (1 − beta2^t)) + denominator_eps)

    Cost of a step: 2 forwards, 3 draws of z, 3 passes over the parameters. State: m and v. The betas are torch's, lr is
    the middle of the ZO-LLM grid. A state stored in 8 bits keeps v above 0 wherever a gradient was seen.

    Args:
        params: Parameters, named parameters or groups of either; a group is a layer.
        lr: Learning rate, a number or a function of the step (the first is 1).
        beta1: EMA of g, in [0, 1).
        beta2: EMA of g², in [0, 1).
        denominator_eps: Added to the denominator, >= 0.
        options: See `ZerothOrder`.
    """

    RULE: ClassVar[type[Rule]] = AdamRule

    def __init__(
        self,
        params: Iterable[Any],
        lr: LearningRate = 1e-6,
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        denominator_eps: float = 1e-8,
        **options: Unpack[Directions],
    ) -> None:
        hyper = {"lr": lr, "beta1": beta1, "beta2": beta2, "denominator_eps": denominator_eps}
        super().__init__(params, hyper, options)


class ZOAdamW(ZOAdam):
    """`ZOAdam` with decoupled decay, theta ← theta − lr · weight_decay · theta first (Loshchilov and Hutter 2019)."""

    RULE = AdamWRule


class Adam(FirstOrder):
    r"""`ZOAdam`'s equations on the gradient: torch.optim.Adam up to rounding, with its defaults.

    Cost of a step: 1 forward, 1 backward, 1 pass over the parameters. State: m and v.

    Args:
        params: Parameters, named parameters or groups of either; a group is a layer.
        lr: Learning rate, a number or a function of the step (the first is 1).
        beta1: EMA of g, in [0, 1).
        beta2: EMA of g², in [0, 1).
        denominator_eps: Added to the denominator, >= 0.
        options: See `helene.steps.base.Base`.
    """

    RULE: ClassVar[type[Rule]] = AdamRule

    def __init__(
        self,
        params: Iterable[Any],
        lr: LearningRate = 1e-3,
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        denominator_eps: float = 1e-8,
        **options: Unpack[Options],
    ) -> None:
        hyper = {"lr": lr, "beta1": beta1, "beta2": beta2, "denominator_eps": denominator_eps}
        super().__init__(params, hyper, options)


class AdamW(Adam):
    """`Adam` with decoupled decay, 0.01 unless given: torch.optim.AdamW up to rounding, with its defaults."""

    RULE = AdamWRule
    DEFAULTS: ClassVar[Mapping[str, Any]] = {"weight_decay": 1e-2}
