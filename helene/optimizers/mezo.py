"""MeZO: SGD along SPSA directions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from helene.rules import SGDRule
from helene.steps.base import LearningRate
from helene.steps.zeroth import Directions, ZerothOrder


class MeZO(ZerothOrder):
    r"""ZO-SGD with directions regenerated from their key (Malladi et al. 2023, algorithm 1).

    theta ← theta − lr (c z + weight_decay · theta),  c = (L(theta + eps z) − L(theta − eps z)) / (2 eps),  z ~ N(0, I).

    Cost of a step: 2 forwards, 3 draws of z, 3 passes over the parameters; no state; scratch memory as in
    `helene.evaluation.probe.Probe` (one module's parameters with ``model``, else a copy of all).

    Departures: theta is never walked to theta ± eps z, so nothing drifts; the defaults are those of the published
    settings for full fine-tuning (lr 1e-6, eps 1e-3).

    Args:
        params: Parameters, named parameters or groups of either; a group is a layer.
        lr: Learning rate, a number or a function of the step (the first is 1).
        options: See `ZerothOrder`.

    Raises:
        ValueError: If an argument is out of its range, no parameter requires a gradient, or a dtype is unsupported.
    """

    RULE = SGDRule

    def __init__(self, params: Iterable[Any], lr: LearningRate = 1e-6, **options: Unpack[Directions]) -> None:
        super().__init__(params, {"lr": lr}, options)
