"""HiZOO: probes and steps scaled by a diagonal curvature from three losses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from helene import functional
from helene.evaluation.curvature import Estimate
from helene.evaluation.directions import compute_dtype
from helene.evaluation.losses import Closure, finite
from helene.inputs import numeric
from helene.rules import HiZOORule
from helene.steps.base import LearningRate, Options
from helene.steps.measurement import Chunk, Measured, Measurement
from helene.steps.plan import Directed, StepPlan
from helene.steps.zeroth import ZerothOrder


class HiZOOOptions(Options, total=False):
    """Keyword arguments of `HiZOO`, see `ZerothOrder`; its probes are two-sided and its directions not on a sphere."""

    eps: float
    num_directions: int
    distribution: str
    direction_per_layer: bool
    model: Any


@dataclass(frozen=True, kw_only=True)
class ScaledProbing(Directed):
    """The probing of `HiZOO`."""

    two_sided: ClassVar[bool] = True
    is_dense: ClassVar[bool] = False  # its g is z / √h

    eps: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        numeric.finite_positive(self.eps, "eps", "1e-3 is published")
        numeric.one_of(self.distribution, "distribution of HiZOO", ("gaussian", "rademacher"))


class ScaledPairs(Measurement):
    """Pairs of probes along z / √h and L(theta): a slope and a second difference of each direction."""

    def forwards(self, probing: ScaledProbing, num_blocks: int) -> int:
        """See `Measurement`."""
        return 2 * probing.num_directions * num_blocks + 1

    def num_scalars(self, probing: ScaledProbing, num_blocks: int) -> int:
        """See `Measurement`."""
        return 2 * probing.num_directions * num_blocks

    def measure(self, optimizer: Any, closure: Closure, plan: StepPlan) -> Measured:
        """See `Measurement`."""
        probing: Any = plan.probing
        eps, q = probing.eps, probing.num_directions
        here = optimizer.loss_here(closure)
        losses = []
        for draw in range(q):
            scaled = _Scaled(optimizer, plan, draw)
            for probe in optimizer.probes:
                losses.append(probe.loss(closure, scaled, eps))
                losses.append(probe.loss(closure, scaled, -eps))
        *values, base = finite(torch.stack([*losses, here]))
        optimizer.resolution.note(values[::2], values[1::2], here.dtype)
        pairs = list(zip(values[::2], values[1::2], strict=True))
        slopes = [functional.projected_gradient(plus, minus, eps) / q for plus, minus in pairs]
        seconds = [functional.second_difference(plus, minus, base, eps) / q for plus, minus in pairs]
        return Measured([*slopes, *seconds], here)

    def coefficients(self, plan: StepPlan, scalars: list[float]) -> list[float]:
        """See `Measurement`."""
        return scalars[: len(scalars) // 2]

    def gradient(self, optimizer: Any, plan: StepPlan, scalars: list[float], sample: Any) -> Chunk:
        """See `Measurement`: Σ_j c_j z_j, which the rule scales by 1/√h."""
        return _Sums(optimizer, plan, scalars)

    def estimate(self, optimizer: Any, plan: StepPlan, gradient: Any) -> Estimate:
        """See `Measurement`: Σ_j z_j² times the second difference, of the chunk of g drawn last."""
        return lambda index, start, end, g: gradient.second


class _Sums:
    """Σ_j c_j z_j by chunks; what the same draws give for h is kept beside it."""

    def __init__(self, optimizer: Any, plan: StepPlan, scalars: list[float]) -> None:
        self.optimizer, self.plan, self.half = optimizer, plan, len(scalars) // 2
        self.scalars = scalars

    def __call__(self, index: int, start: int, end: int) -> Tensor:
        target, block, blocks = self.optimizer.targets[index], self.optimizer.block_of[index], self.optimizer.num_blocks
        wide, device = compute_dtype(target.tensor.dtype), target.tensor.device
        g = torch.zeros(end - start, dtype=wide, device=device)
        self.second = torch.zeros_like(g)
        pairs = zip(self.scalars[: self.half][block::blocks], self.scalars[self.half :][block::blocks], strict=True)
        for draw, (slope, curvature) in enumerate(pairs):
            z = self.optimizer.direction(self.plan, draw).chunk(target.id, start, end, device, wide)
            g.add_(slope * z)
            self.second.add_(z.square_().mul_(curvature))
        return g


class _Scaled:
    """z / √h as a displacement."""

    def __init__(self, optimizer: Any, plan: StepPlan, draw: int) -> None:
        self.optimizer, self.plan, self.direction = optimizer, plan, optimizer.direction(plan, draw)
        self.index = {target.id: index for index, target in enumerate(optimizer.targets)}

    def chunk(
        self, parameter: int, start: int, end: int, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        index = self.index[parameter]
        rule = self.plan.rules[self.optimizer.targets[index].layer]
        h = self.optimizer.read_state(index, rule, slice(start, end)).curvature
        z = self.direction.chunk(parameter, start, end, device, compute_dtype(dtype))
        return z.div_(h.sqrt()).to(dtype)


class HiZOO(ZerothOrder):
    r"""Hessian informed ZO-SGD (Zhao et al. 2024), with h = diag(Σ⁻¹), 1 at first, and z ~ N(0, I):

        c = (L(theta + eps z/√h) − L(theta − eps z/√h)) / (2 eps)
        theta ← theta − lr (c z/√h + weight_decay · theta)
        h ← (1 − smooth) h + smooth · h z² |L⁺ + L⁻ − 2 L(theta)| / (2 eps²)

    Probes and step use the h from before the step, as the paper's algorithm has it; with several directions, c z and
    the estimate of h are means over them. Cost of a step: 3 forwards (2 q + 1), 3 draws of z, 3 passes over the
    parameters, the probes reading h too. State: h. Defaults are the published ones (lr 1e-6, eps 1e-3, smooth 1e-8).

    Departure: the published code averages the estimate into Σ, not into its inverse, and steps with the new one; here
    the equations are followed.

    Args:
        params: Parameters, named parameters or groups of either; a group is a layer.
        lr: Learning rate, a number or a function of the step (the first is 1).
        smooth: Weight of a new estimate of h, in [0, 1).
        options: See `ZerothOrder`.
    """

    RULE = HiZOORule
    PROBING = ScaledProbing
    MEASUREMENT = ScaledPairs()

    def __init__(
        self, params: Iterable[Any], lr: LearningRate = 1e-6, *, smooth: float = 1e-8, **options: Unpack[HiZOOOptions]
    ) -> None:
        super().__init__(params, {"lr": lr, "smooth": smooth}, options)
