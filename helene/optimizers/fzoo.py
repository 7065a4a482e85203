"""FZOO: several one-sided Rademacher directions, the step scaled by the spread of their losses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor, nn

from helene import functional
from helene.evaluation.directions import Direction
from helene.evaluation.losses import Closure, Informed, finite
from helene.inputs import numeric
from helene.rules import SGDRule
from helene.steps.base import LearningRate, Options
from helene.steps.measurement import Measured, Measurement
from helene.steps.plan import MAX_DIRECTIONS, Seeded, StepPlan
from helene.steps.zeroth import ZerothOrder


class FZOOOptions(Options, total=False):
    """Keyword arguments of `FZOO`; its directions are one-sided, Rademacher and common to all layers."""

    eps: float
    num_directions: int
    model: nn.Module | None


@dataclass(frozen=True, kw_only=True)
class SpreadProbing(Seeded):
    """The probing of `FZOO`."""

    two_sided: ClassVar[bool] = False
    distribution: ClassVar[str] = "rademacher"
    direction_per_layer: ClassVar[bool] = False
    is_dense: ClassVar[bool] = True

    eps: float = 1e-4
    num_directions: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        numeric.finite_positive(self.eps, "eps", "1e-4 is published")
        numeric.whole(self.num_directions, "num_directions", 2, MAX_DIRECTIONS, "a spread needs two; 8 is published")


class Evaluated(Informed):
    """Knows its losses at theta and at theta + eps z of each direction, a function of these and eps.

    It gives None where they are to be evaluated.
    """

    known: Callable[[Sequence[Direction], float], Sequence[Tensor] | None]


class Spread(Measurement):
    """The weights of one-sided directions, see `functional.fzoo_weights`."""

    sums_directions = True

    def forwards(self, probing: SpreadProbing, num_blocks: int) -> int:
        """See `Measurement`."""
        return probing.num_directions + 1

    def measure(self, optimizer: Any, closure: Closure, plan: StepPlan) -> Measured:
        """See `Measurement`."""
        probing: Any = plan.probing
        directions = [optimizer.direction(plan, draw) for draw in range(probing.num_directions)]
        known = closure.known(directions, probing.eps) if isinstance(closure, Evaluated) else None
        if known is None:
            here = optimizer.loss_here(closure)
            known = [here, *[optimizer.probe.loss(closure, direction, probing.eps) for direction in directions]]
        here, *losses = known
        *values, base = finite(torch.stack([*losses, here]))
        optimizer.resolution.note(values, [base] * len(values), here.dtype)
        return Measured(functional.fzoo_weights(values, base), here)


class FZOO(ZerothOrder):
    r"""Normalised ZO-SGD (Dang et al. 2025), with z_i of elements ±1 and L_i = L(theta + eps z_i):

        g = (1/N) Σ_i (L_i − L(theta)) z_i / σ,  σ the standard deviation (over N − 1) of the L_i
        theta ← theta − lr (g + weight_decay · theta)

    The slopes (L_i − L) / eps divided by their own spread σ / eps: eps cancels, the step is free of the loss's scale
    and a weight moves by about lr/√N. (Where g is written with a factor 1/eps that σ does not have, the same step has
    learning rate lr · eps.) Cost of a step: N + 1 forwards, 2 N draws of z, N + 1 passes over the parameters; no
    state. Defaults are the published ones (lr 5e-5, eps 1e-4, N 8).

    Departure: the N forwards run one after the other; batching them into one is a matter of speed. On a GPU
    `helene.engine.spreads.SpreadEngine` replays each of them.

    Args:
        params: Parameters, named parameters or groups of either; a group is a layer.
        lr: Learning rate, a number or a function of the step (the first is 1).
        options: ``num_directions`` (N, >= 2), ``eps``, ``model``, see `ZerothOrder`, and those of
            `helene.steps.base.Base`.
    """

    RULE = SGDRule
    PROBING = SpreadProbing
    MEASUREMENT = Spread()

    def __init__(self, params: Iterable[Any], lr: LearningRate = 5e-5, **options: Unpack[FZOOOptions]) -> None:
        super().__init__(params, {"lr": lr}, options)
