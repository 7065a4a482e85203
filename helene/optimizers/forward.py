"""Forward gradients: the slope along a direction by forward-mode differentiation, without eps."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Unpack

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

from helene.evaluation.directions import Direction, Target, chunks, compute_dtype
from helene.evaluation.losses import Closure, Informed, as_loss, scalar_loss
from helene.evaluation.undo import Undo
from helene.rules import SGDRule
from helene.steps.base import LearningRate, Options
from helene.steps.measurement import Measured, Measurement
from helene.steps.plan import Directed, StepPlan
from helene.steps.zeroth import ZerothOrder


class ForwardGradOptions(Options, total=False):
    """Keyword arguments of `ForwardGrad`; it has no probes, so neither eps nor sides."""

    num_directions: int
    distribution: str
    direction_per_layer: bool
    model: Any


class Tangents(Measurement):
    """zᵀ∇L(theta) of each direction, by forward-mode differentiation."""

    sums_directions = True

    def forwards(self, probing: Directed, num_blocks: int) -> int:
        """See `Measurement`: a forward with its tangent counts as two."""
        return 2 * probing.num_directions * num_blocks

    def measure(self, optimizer: Any, closure: Closure, plan: StepPlan) -> Measured:
        """See `Measurement`."""
        assert isinstance(plan.probing, Directed)
        scalars, losses = [], []
        for draw in range(plan.probing.num_directions):
            direction = optimizer.direction(plan, draw)
            for block, probe in enumerate(optimizer.probes):
                length = optimizer.length(plan, direction, block)
                loss, slope = _directional(closure, probe.targets, direction, length)
                losses.append(loss)
                scalars.append(slope * length / plan.probing.num_directions)
        return Measured(scalars, torch.stack(losses).mean())


class ForwardGrad(ZerothOrder):
    r"""theta ← theta − lr (c z + weight_decay · theta),  c = zᵀ∇L(theta) by jvp (Baydin et al. 2022, algorithm 1).

    MeZO's step in the limit eps → 0, without its rounding error.

    Cost of a step: one forward with its tangent, counted as 2 forwards, 2 draws of z, 2 passes over the parameters; no
    state; scratch memory for z (the bytes of all trained parameters, twice those of the largest) and for the tangents
    of live activations. The operations of the loss need forward-mode rules: scaled dot product attention is run by
    torch's plain math kernel, and a compiled model may have to be given uncompiled. lr is the middle of the ZO-LLM
    grid.

    Args:
        params: Parameters, named parameters or groups of either; a group is a layer.
        lr: Learning rate, a number or a function of the step (the first is 1).
        options: See `ZerothOrder`; ``eps`` and ``two_sided`` are none of this method's.
    """

    RULE = SGDRule
    PROBING = Directed
    MEASUREMENT = Tangents()

    def __init__(self, params: Iterable[Any], lr: LearningRate = 1e-6, **options: Unpack[ForwardGradOptions]) -> None:
        super().__init__(params, {"lr": lr}, options)


class Sloped(Informed):
    """Knows its loss and its derivative along length · z, a function of the parameters, z and the length."""

    known: Callable[[Sequence[Target], Direction, float], tuple[Tensor, Tensor]]


def _directional(
    closure: Closure, targets: Sequence[Target], direction: Direction, length: float
) -> tuple[Tensor, float]:
    """L and its derivative along length · z."""
    if isinstance(closure, Sloped):
        value, tangent = closure.known(targets, direction, length)
    else:
        value, tangent = primal_and_tangent(closure, targets, tangents_of(targets, direction, length))
    return scalar_loss(value), scalar_loss(tangent).double().item()


def tangents_of(targets: Sequence[Target], direction: Direction, length: float) -> list[Tensor]:
    """length · z for each parameter, of its dtype and shape."""
    made = []
    for target in targets:
        p = target.tensor.detach()
        z = torch.empty(p.numel(), dtype=p.dtype, device=p.device)
        for start, end in chunks(p.numel(), p.device):
            z[start:end] = direction.chunk(target.id, start, end, p.device, compute_dtype(p.dtype)).mul_(length)
        made.append(z.view(p.shape))
    return made


def primal_and_tangent(
    closure: Closure, targets: Sequence[Target], tangents: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """L and its derivative along tangents of the parameters; whether they are finite is not looked at on a GPU.

    A parameter becomes a dual number by copying one with the same value into it, which changes no bit of it; leaving
    the level makes it plain again.

    Raises:
        ValueError: If the loss is no scalar or has no forward-mode derivative.
    """
    undo = Undo()
    try:
        try:
            undo.modes()
            undo.dual_levels()
            torch.set_grad_enabled(False)
            torch.clear_autocast_cache()
            forward_ad.enter_dual_level()
            with sdpa_kernel(SDPBackend.MATH):
                value, tangent = _unpacked(closure, targets, tangents)
        finally:
            undo.run()
    finally:
        undo.run()
    if tangent is None:
        raise ValueError(
            "the loss does not depend on the parameters through operations that have a forward-mode derivative; MeZO "
            "needs none"
        )
    torch.clear_autocast_cache()
    return value, tangent


def _unpacked(closure: Closure, targets: Sequence[Target], tangents: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
    for target, z in zip(targets, tangents, strict=True):
        with warnings.catch_warnings():  # torch loads its decompositions with a deprecated call of its own
            warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated", DeprecationWarning)
            dual = forward_ad.make_dual(target.tensor.detach(), z)
        target.tensor.copy_(dual)
    loss = closure()
    if not isinstance(loss, Tensor):
        return as_loss(loss), None
    primal, tangent = forward_ad.unpack_dual(loss)
    return as_loss(primal), None if tangent is None else as_loss(tangent)
