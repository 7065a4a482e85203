"""A diagonal Newton step without a floor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from helene.rules import NewtonRule
from helene.steps.base import LearningRate
from helene.steps.zeroth import Curvature, ZerothOrder


class ZONewton(ZerothOrder):
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
        options: See `helene.rules.CurvatureRule` and `ZerothOrder`.
    """

    RULE = NewtonRule

    def __init__(
        self,
        params: Iterable[Any],
        lr: LearningRate = 1e-6,
        *,
        denominator_eps: float = 1e-12,
        **options: Unpack[Curvature],
    ) -> None:
        super().__init__(params, {"lr": lr, "denominator_eps": denominator_eps}, options)
