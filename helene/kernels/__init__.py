r"""Fused kernels for noise, perturbed copies and updates, and the choice between them and plain torch.

`helene.evaluation.blocks` and `helene.steps.base` ask here first and do the work themselves where there is no
kernel for it; `helene.noise` asks `backend`. Nothing here imports Triton before a tensor needs it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor

from helene.evaluation.undo import deferred_interrupts
from helene.kernels.backend import VARIABLE, Backend, backend

if TYPE_CHECKING:
    from helene.evaluation.directions import Direction
    from helene.steps.plan import StepPlan

__all__ = ["Backend", "Launches", "backend", "can_draw", "can_update", "has_kernel"]


def wanted(device: torch.device) -> bool:
    """Whether tensors of a device may be handled here at all; cheap, so that the CPU's path pays nothing."""
    return device.type != "cpu" or VARIABLE in os.environ


def has_kernel(theta: Tensor) -> bool:
    """Whether the fused kernels can handle a parameter: contiguous, on a device and of a dtype that they know."""
    return wanted(theta.device) and theta.is_contiguous() and backend(theta).is_triton


def can_draw(direction: Any) -> TypeGuard[Direction]:
    """Whether the fused kernels draw a displacement: a `helene.evaluation.directions.Direction`."""
    from helene.evaluation.directions import Direction

    return isinstance(direction, Direction)


def can_update(optimizer: Any, plan: StepPlan) -> bool:
    """Whether the update of a step is one kernel a kind of parameter."""
    kinds = {(t.tensor.dtype, t.tensor.device): t.tensor for t in optimizer.targets}.values()
    if not all(wanted(t.device) for t in kinds):
        return False
    from helene.kernels import methods

    return all(backend(t).is_triton for t in kinds) and isinstance(
        methods.fused(plan, optimizer.targets), methods.Fused
    )


class Launches:
    """The update of a step for which `can_update` holds, see `helene.steps.chunkwise.Moves`.

    Parameters and state come out as by that loop, given equal z. A launch can be neither repeated nor undone, so Ctrl-C
    waits for the last of them.
    """

    def __init__(self, optimizer: Any, plan: StepPlan, coefficients: Sequence[float]) -> None:
        self._what = optimizer, plan, coefficients
        self.begun = False

    def make(self) -> None:
        """Launch them, once."""
        from helene.kernels import control

        with deferred_interrupts():
            if not self.begun:
                self.begun = True
                control.step(*self._what)
