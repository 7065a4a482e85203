r"""Fused kernels for noise, perturbed copies and updates, and the choice between them and plain torch.

`helene.evaluation.blocks` and `helene.steps.fused` ask here first; where there is no kernel, plain torch does the work.
`helene.noise` asks `backend`. Nothing here imports Triton before a tensor needs it.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor

from helene.kernels.backend import VARIABLE, Backend, backend

__all__ = ["VARIABLE", "Backend", "backend", "has_kernel", "wanted"]


def wanted(device: torch.device) -> bool:
    """Whether tensors of a device may be handled here at all; cheap, so that the CPU's path pays nothing."""
    return device.type != "cpu" or VARIABLE in os.environ


def has_kernel(theta: Tensor) -> bool:
    """Whether the fused kernels can handle a parameter: contiguous, on a device and of a dtype that they know."""
    return wanted(theta.device) and theta.is_contiguous() and backend(theta).is_triton
