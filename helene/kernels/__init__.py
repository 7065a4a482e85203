r"""Fused kernels for noise, perturbed copies and updates, and the choice between them and plain torch.

`helene.evaluation.directions` and `helene.steps.base` ask here first and do the work themselves where there is no
kernel for it; `helene.noise` asks `backend`. Nothing here imports Triton before a tensor needs it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from helene.evaluation.undo import deferred_interrupts
from helene.kernels.backend import VARIABLE, Backend, backend

if TYPE_CHECKING:
    from helene.steps.plan import StepPlan

__all__ = ["Backend", "Launches", "backend", "can_update", "write_perturbed"]


def wanted(device: torch.device) -> bool:
    """Whether tensors of a device may be handled here at all; cheap, so that the CPU's path pays nothing."""
    return device.type != "cpu" or VARIABLE in os.environ


def write_perturbed(
    outs: Sequence[Tensor], thetas: Sequence[Tensor], ids: Sequence[int], direction: Any, radius: float
) -> list[int]:
    """out ← theta + radius · z for each parameter, in one kernel where there is one for it.

    Args:
        outs: Of the parameters' shapes and dtypes.
        thetas: The parameters.
        ids: Of the parameters in `helene.noise`.
        direction: A `helene.evaluation.directions.Direction` of normals; others are not handled.
        radius: What z is multiplied by.

    Returns:
        Which of them are left to be written.
    """
    from helene.evaluation.directions import Direction

    everything = list(range(len(thetas)))
    if not isinstance(direction, Direction) or direction.signs:
        return everything
    done = [i for i in everything if wanted(thetas[i].device) and _has_kernel(outs[i], thetas[i])]
    if not done:
        return everything
    from helene.kernels import launch

    launch.write_perturbed(
        [outs[i] for i in done], [thetas[i] for i in done], [ids[i] for i in done], direction, radius
    )
    return sorted(set(everything) - set(done))


def _has_kernel(out: Tensor, theta: Tensor) -> bool:
    return theta.is_contiguous() and out.is_contiguous() and backend(theta).is_triton


def can_update(optimizer: Any, plan: StepPlan) -> bool:
    """Whether the update of a step is one kernel a kind of parameter."""
    tensors = [target.tensor for target in optimizer.targets]
    if not all(wanted(t.device) for t in tensors):
        return False
    from helene.kernels import methods

    return all(backend(t).is_triton for t in tensors) and isinstance(
        methods.fused(plan, optimizer.targets), methods.Fused
    )


class Launches:
    """The update of a step for which `can_update` holds, along slope · z; see `helene.steps.chunkwise.Moves`.

    Parameters and state come out as by that loop, given equal z. A launch can be neither repeated nor undone, so Ctrl-C
    waits for the last of them.
    """

    def __init__(self, optimizer: Any, plan: StepPlan, slope: float) -> None:
        self._what = optimizer, plan, slope
        self.begun = False

    def make(self) -> None:
        """Launch them, once."""
        from helene.kernels import launch

        with deferred_interrupts():
            if not self.begun:
                self.begun = True
                launch.step(*self._what)
