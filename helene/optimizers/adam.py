"""Adam and AdamW, on SPSA gradients and on gradients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Unpack

from torch import Tensor

from helene import functional
from helene.optimizers import checks
from helene.optimizers.base import Base, LearningRate, Options, Updates
from helene.optimizers.first import FirstOrder
from helene.optimizers.zeroth import Directions, ZerothOrder


class _AdamRule(Base):
    _STATE = ("momentum", "second_moment")
    _COUPLED: ClassVar[bool] = True

    def _update(
        self, group: dict[str, Any], theta: Tensor, g: Tensor, state: Updates, estimate: Tensor | None
    ) -> tuple[Tensor, Updates]:
        theta, m, v = functional.adam_step(
            theta,
            g,
            state["momentum"],
            state["second_moment"],
            lr=group["lr"],
            beta1=group["beta1"],
            beta2=group["beta2"],
            denominator_eps=group["denominator_eps"],
            step=group["step"],
            weight_decay=group["weight_decay"],
            coupled=self._COUPLED,
        )
        return theta, {"momentum": m, "second_moment": v}

    def _factor(self, group: dict[str, Any], state: Updates) -> Tensor:
        step = max(1, group["step"])
        root = (state["second_moment"] * functional.bias_correction(group["beta2"], step)).sqrt()
        return functional.bias_correction(group["beta1"], step) / (root + group["denominator_eps"])

    def _check(self, group: dict[str, Any]) -> None:
        super()._check(group)
        checks.fraction(group["beta1"], "beta1")
        checks.fraction(group["beta2"], "beta2")
        checks.nonnegative(group["denominator_eps"], "denominator_eps")


class ZOAdam(_AdamRule, ZerothOrder):
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

    _COUPLED = False


class Adam(_AdamRule, FirstOrder):
    r"""`ZOAdam`'s equations on the gradient: torch.optim.Adam up to rounding, with its defaults.

    Cost of a step: 1 forward, 1 backward, 1 pass over the parameters. State: m and v.

    Args:
        params: Parameters, named parameters or groups of either; a group is a layer.
        lr: Learning rate, a number or a function of the step (the first is 1).
        beta1: EMA of g, in [0, 1).
        beta2: EMA of g², in [0, 1).
        denominator_eps: Added to the denominator, >= 0.
        options: See `helene.optimizers.base.Base`.
    """

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

    _COUPLED = False
    _OPTIONS: ClassVar[Mapping[str, Any]] = {**Adam._OPTIONS, "weight_decay": 1e-2}
