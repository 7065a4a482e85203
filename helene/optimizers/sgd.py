"""SGD with momentum, the first-order baseline."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from torch import Tensor

from helene import functional
from helene.optimizers import checks
from helene.optimizers.base import LearningRate, Options, Updates
from helene.optimizers.first import FirstOrder


class SGD(FirstOrder):
    r"""m ← momentum · m + g + weight_decay · theta,  theta ← theta − lr · m  (torch.optim.SGD, decay coupled).

    Cost of a step: 1 forward, 1 backward, 1 pass over the parameters. State: m, none without momentum. Defaults are
    torch's. Equal to torch.optim.SGD up to rounding.

    Args:
        params: Parameters, named parameters or groups of either; a group is a layer.
        lr: Learning rate, a number or a function of the step (the first is 1).
        momentum: In [0, 1); groups may have their own if it is not 0.
        options: See `helene.optimizers.base.Base`.
    """

    def __init__(
        self, params: Iterable[Any], lr: LearningRate = 1e-3, *, momentum: float = 0.0, **options: Unpack[Options]
    ) -> None:
        self._STATE = ("momentum",) if momentum else ()
        super().__init__(params, {"lr": lr, "momentum": momentum}, options)

    def _begin(self) -> int:
        step = super()._begin()
        for group in self.param_groups:  # OneCycleLR and CyclicLR set momentum
            self._check(group)
        return step

    def _update(
        self, group: dict[str, Any], theta: Tensor, g: Tensor, state: Updates, estimate: Tensor | None
    ) -> tuple[Tensor, Updates]:
        lr, weight_decay = group["lr"], group["weight_decay"]
        if "momentum" not in state:
            return functional.sgd_step(theta, g, lr=lr, weight_decay=weight_decay), {}
        theta, m = functional.momentum_step(
            theta, g, state["momentum"], lr=lr, beta1=group["momentum"], weight_decay=weight_decay, coupled=True
        )
        return theta, {"momentum": m}

    def _check(self, group: dict[str, Any]) -> None:
        super()._check(group)
        checks.fraction(group["momentum"], "momentum")
        if group["momentum"] and not self._STATE:
            raise ValueError(
                f"a group has momentum {group['momentum']!r}, but SGD was made with 0 and keeps no m; give SGD itself "
                "a momentum above 0, or the scheduler that sets it cycle_momentum=False"
            )
