"""HiZOO: probes and steps scaled by a diagonal curvature from three losses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from helene import functional
from helene.directions import Direction, compute_dtype
from helene.optimizers import checks
from helene.optimizers.base import Chunk, LearningRate, Options, Updates
from helene.optimizers.curved import CURVATURE
from helene.optimizers.zeroth import ZerothOrder
from helene.probe import Closure


class HiZOOOptions(Options, total=False):
    """Keyword arguments of `HiZOO`, see `ZerothOrder`; its probes are two-sided and its directions not on a sphere."""

    eps: float
    num_directions: int
    distribution: str
    direction_per_layer: bool
    model: Any


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

    _STATE = (CURVATURE,)
    _INITIAL: ClassVar[Mapping[str, float]] = {CURVATURE: 1.0}
    _OPTIONS: ClassVar[Mapping[str, Any]] = {k: v for k, v in ZerothOrder._OPTIONS.items() if k != "two_sided"}

    def __init__(
        self, params: Iterable[Any], lr: LearningRate = 1e-6, *, smooth: float = 1e-8, **options: Unpack[HiZOOOptions]
    ) -> None:
        super().__init__(params, {"lr": lr, "smooth": smooth, "two_sided": True}, options)

    def forwards_at(self, step: int) -> int:
        """Forwards that a step makes."""
        return super().forwards_at(step) + 1

    def _measure(self, closure: Closure, step: int) -> tuple[list[float], Tensor]:
        eps, q = self.param_groups[0]["eps"], self.param_groups[0]["num_directions"]
        here = self._loss(closure)
        losses = []
        for draw in range(q):
            scaled = _Scaled(self, self._direction(step, draw))
            for probe in self._probes:
                losses.append(probe.loss(closure, scaled, eps))
                losses.append(probe.loss(closure, scaled, -eps))
        *values, base = torch.stack([*losses, here]).double().tolist()
        pairs = list(zip(values[::2], values[1::2], strict=True))
        slopes = [(plus - minus) / (2.0 * eps) / q for plus, minus in pairs]
        return [*slopes, *(functional.second_difference(plus, minus, base, eps) / q for plus, minus in pairs)], here

    def _num_scalars(self, step: int) -> int:
        return 2 * super()._num_scalars(step)

    def _gradient(self, step: int, scalars: list[float]) -> Chunk:
        """Σ_j c_j z_j by chunks; Σ_j z_j² · second difference of the same draw is kept for `_estimate`."""
        blocks, half = len(self._probes), len(scalars) // 2

        def chunk(index: int, start: int, end: int) -> Tensor:
            p, block = self._targets[index].tensor, self._block_of[index]
            g = torch.zeros(end - start, dtype=compute_dtype(p.dtype), device=p.device)
            self._second = torch.zeros_like(g)
            pairs = zip(scalars[:half][block::blocks], scalars[half:][block::blocks], strict=True)
            for draw, (slope, curvature) in enumerate(pairs):
                z = self._direction(step, draw).chunk(self._targets[index].id, start, end, p.device, g.dtype)
                g.add_(slope * z)
                self._second.add_(z.square_().mul_(curvature))
            return g

        return chunk

    def _estimate(self, index: int, span: slice, g: Tensor) -> Tensor | None:
        return self._second

    def _update(
        self, group: dict[str, Any], theta: Tensor, g: Tensor, state: Updates, estimate: Tensor | None
    ) -> tuple[Tensor, Updates]:
        assert estimate is not None
        theta, h = functional.hizoo_step(
            theta,
            g,
            state[CURVATURE],
            estimate,
            lr=group["lr"],
            smooth=group["smooth"],
            weight_decay=group["weight_decay"],
        )
        return theta, {CURVATURE: h}

    def _factor(self, group: dict[str, Any], state: Updates) -> Tensor:
        return state[CURVATURE].rsqrt()

    def _check(self, group: dict[str, Any]) -> None:
        super()._check(group)
        checks.fraction(group["smooth"], "smooth")
        checks.one_of(group["distribution"], "distribution of HiZOO", ("gaussian", "rademacher"))


class _Scaled:
    """z / √h as a displacement."""

    def __init__(self, optimizer: HiZOO, direction: Direction) -> None:
        self.optimizer, self.direction = optimizer, direction
        self.index = {target.id: index for index, target in enumerate(optimizer._targets)}

    def chunk(
        self, parameter: int, start: int, end: int, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        h = self.optimizer._read_state(self.index[parameter], CURVATURE, slice(start, end))
        z = self.direction.chunk(parameter, start, end, device, compute_dtype(dtype))
        return z.div_(h.sqrt()).to(dtype)
