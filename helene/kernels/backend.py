"""Which implementation handles a tensor, and why: the one place where that is decided."""

from __future__ import annotations

import functools
import importlib.util
import os
from typing import NamedTuple

import torch
from torch import Tensor

VARIABLE = "HELENE_KERNELS"
_MINIMUM = 8, 0  # compute capability of the oldest GPU that Triton compiles for


class Backend(NamedTuple):
    """Name of an implementation, and in one line why it is this one."""

    name: str
    reason: str

    @property
    def is_triton(self) -> bool:
        """Whether the fused kernels handle the tensor."""
        return self.name == "triton"


def backend(tensor: Tensor) -> Backend:
    """The implementation for a tensor: ``triton`` or ``torch``.

    The environment variable HELENE_KERNELS=torch turns the fused kernels off; HELENE_KERNELS=triton asks for them on
    the CPU too, where they run in Triton's interpreter (TRITON_INTERPRET=1; for tests, it is slow).

    Raises:
        ValueError: If the variable has another value, or asks for what is not there.
    """
    asked = os.environ.get(VARIABLE, "")
    if asked not in ("", "torch", "triton"):
        raise ValueError(f"{VARIABLE} must be torch or triton, got {asked!r}; unset it to choose by device")
    if asked == "torch":
        return Backend("torch", f"{VARIABLE}=torch")
    if tensor.dtype == torch.float64:
        return Backend("torch", "the parameters are float64, and the kernels compute in float32")
    if tensor.device.type == "cpu" and asked == "triton":
        if not has_triton() or os.environ.get("TRITON_INTERPRET") != "1":
            raise ValueError(f"{VARIABLE}=triton on the CPU needs triton and TRITON_INTERPRET=1; unset {VARIABLE}")
        return Backend("triton", f"{VARIABLE}=triton")
    return _of_device(tensor.device)


@functools.cache
def has_triton() -> bool:
    """Whether triton can be imported; it is not imported for that."""
    return importlib.util.find_spec("triton") is not None


@functools.cache
def _of_device(device: torch.device) -> Backend:
    if device.type != "cuda" or torch.version.hip is not None:
        return Backend("torch", f"the parameters are on {device.type}, not on an NVIDIA GPU")
    if not has_triton():
        return Backend("torch", "triton is not installed")
    found = torch.cuda.get_device_capability(device)
    if found < _MINIMUM:
        return Backend("torch", f"the GPU has compute capability {found[0]}.{found[1]}, the kernels need 8.0")
    return Backend("triton", "an NVIDIA GPU with triton")
