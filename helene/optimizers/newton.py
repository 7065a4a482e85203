"""A diagonal Newton step without a floor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Unpack

from torch import Tensor

from helene import functional
from helene.optimizers import checks
from helene.optimizers.base import LearningRate, Updates
from helene.optimizers.curved import CURVATURE, Curvature, Curved
from helene.optimizers.zeroth import ZerothOrder


class ZONewton(Curved, ZerothOrder):
    r"""theta ← theta − lr · weight_decay · theta − lr · g / (h + denominator_eps): what HELENE's floor guards against.

    g is the SPSA gradient and h as in `Helene`, estimated at every step unless told otherwise. A coordinate whose h is
    small moves far: with the default denominator_eps (HELENE's) and h from SPSA this leaves the region where the
    loss is smooth within a few steps, which is what the method is here to show. denominator_eps damps it.

    Cost of a step: 2 forwards, 3 draws of z, 3 passes over the parameters, and what the curvature source adds. State:
    h.

    Args:
        params: Parameters, named parameters or groups of either; a group is a layer.
        lr: Learning rate, a number or a function of the step (the first is 1).
        denominator_eps: Added to the denominator, >= 0.
        options: See `helene.optimizers.curved.Curved` and `ZerothOrder`.
    """

    _STATE = (CURVATURE,)
    _OPTIONS: ClassVar[Mapping[str, Any]] = {**ZerothOrder._OPTIONS, **Curved._CURVATURE, "interval": 1}

    def __init__(
        self,
        params: Iterable[Any],
        lr: LearningRate = 1e-6,
        *,
        denominator_eps: float = 1e-12,
        **options: Unpack[Curvature],
    ) -> None:
        super().__init__(params, {"lr": lr, "denominator_eps": denominator_eps}, options)

    def _update(
        self, group: dict[str, Any], theta: Tensor, g: Tensor, state: Updates, estimate: Tensor | None
    ) -> tuple[Tensor, Updates]:
        h, updates = self._new_curvature(group, state, estimate)
        assert h is not None
        theta = functional.newton_step(
            theta,
            g,
            h * self._correction(group),
            lr=group["lr"],
            denominator_eps=group["denominator_eps"],
            weight_decay=group["weight_decay"],
        )
        return theta, updates

    def _factor(self, group: dict[str, Any], state: Updates) -> Tensor:
        return 1.0 / (state[CURVATURE] * self._correction(group) + group["denominator_eps"])

    def _check(self, group: dict[str, Any]) -> None:
        super()._check(group)
        checks.nonnegative(group["denominator_eps"], "denominator_eps")
        if group["curvature"] == "none":
            raise ValueError("curvature='none' leaves ZONewton nothing to divide by; MeZO is the method without h")
