"""ZO-SGD-Cons: a step is taken only if it lowers the loss."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Unpack

import torch
from torch import Tensor

from helene.evaluation.directions import Displacement
from helene.evaluation.losses import Closure, finite
from helene.rules import DecayLastRule
from helene.steps.base import LearningRate
from helene.steps.measurement import Chunk, Measured, PairOfLosses, Pairs
from helene.steps.plan import Probing, StepPlan
from helene.steps.zeroth import Directions, ZerothOrder

SIDES = 1.0, -1.0  # of theta − side · lr g, in the order of the candidates


class BestOfThree(Pairs):
    """The slopes, and which of theta, theta − lr g and theta + lr g has the lowest loss: 0, 1 or −1."""

    slope_is_all = False

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
        here = finite(optimizer.loss_here(closure) if plan.probing.two_sided else loss)[0]
        along: Displacement
        if self.not_from_pairs(plan):
            along, radius = _Move(optimizer, plan, optimizer.combination(plan, coefficients)), 1.0
        else:  # the copies are those of `from_pairs`, bit for bit
            along, radius = optimizer.direction(plan), _radius(plan, *coefficients)
        candidates = [_loss(optimizer, closure, along, -side * radius) for side in SIDES]
        return Measured([*coefficients, _best(here, *candidates)], loss)

    def not_from_pairs(self, plan: StepPlan) -> str:
        """See `Measurement`."""
        if reason := super().not_from_pairs(plan):
            return reason
        if len({rule.lr for rule in plan.rules}) > 1:
            return "lr differs between layers, so that theta ± lr g is not on the line of the probes"
        return ""

    def from_pairs(self, plan: StepPlan, pair: PairOfLosses) -> list[float]:
        """See `Measurement`: c and the choice, by three pairs; both losses of the second are L(theta)."""
        slopes = super().from_pairs(plan, pair)
        here = finite(pair(0.0))[0]
        ascent, descent = pair(_radius(plan, *slopes))
        return [*slopes, _best(here, descent, ascent)]

    def coefficients(self, plan: StepPlan, scalars: list[float]) -> list[float]:
        """See `Measurement`."""
        return scalars[:-1]

    def weights(self, plan: StepPlan, scalars: list[float]) -> list[float]:
        """See `Measurement`: the slopes, with the sign of the choice."""
        return [scalars[-1] * c for c in scalars[:-1]]


class ZOConservative(ZerothOrder):
    r"""ZO-SGD-Cons: of theta, theta − lr g and theta + lr g, the one with the lowest loss (Kim et al. 2021; ZO-LLM).

    theta ← argmin L over the three, theta itself in a tie; then theta ← theta − lr · weight_decay · theta.

    Cost of a step: 5 forwards (2 for g, 3 for the candidates; 4 if one-sided, where L(theta) is known), 5 draws of z, 5
    passes over the parameters; no state. A candidate is a perturbed copy, so nothing has to be undone: a step that is
    refused leaves theta as it was, bit for bit. A candidate whose loss is not finite is refused. Candidates are rounded
    to nearest, also where the step taken is rounded stochastically. With one lr and one direction a candidate is theta
    ± (lr c) z, the step taken theta ± lr (c z): equal up to rounding. lr is the middle of the ZO-LLM grid.

    `helene.engine.Engine` makes such steps by three replays of one graph of two forwards, at the radii eps, 0 and lr c.
    One of these six forwards, the other one at theta, is not counted among the step's.

    Args:
        params: Parameters, named parameters or groups of either; a group is a layer.
        lr: Learning rate, a number or a function of the step (the first is 1).
        options: See `ZerothOrder`.
    """

    RULE = DecayLastRule
    MEASUREMENT = BestOfThree()

    def __init__(self, params: Iterable[Any], lr: LearningRate = 1e-6, **options: Unpack[Directions]) -> None:
        super().__init__(params, {"lr": lr}, options)


def _radius(plan: StepPlan, slope: float) -> float:
    """lr c: how far the candidates are from theta along z; beyond float32, which z is in, they are not finite."""
    radius = float(plan.rules[0].lr) * slope
    return radius if abs(radius) <= torch.finfo(torch.float32).max else math.nan


def _best(here: float, descent: float, ascent: float) -> float:
    """The side of the lowest loss, 0 for theta; theta in a tie, and no candidate whose loss is not finite."""
    choice, least = 0.0, here
    for side, value in zip(SIDES, (descent, ascent), strict=True):
        if math.isfinite(value) and value < least:
            choice, least = side, value
    return choice


def _loss(optimizer: Any, closure: Closure, along: Displacement, radius: float) -> float:
    """A candidate's loss, nan where it is not finite."""
    try:
        return finite(optimizer.probe.loss(closure, along, radius))[0]
    except FloatingPointError:
        return math.nan


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
