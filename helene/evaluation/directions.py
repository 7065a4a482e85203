"""What parameters are moved along, chunk by chunk, and their perturbed copies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from helene import noise

CHUNK = 1 << 17  # elements handled at once, so that temporaries stay in cache and memory stays bounded
DEVICE_CHUNK = 1 << 24  # off the CPU, where a launch costs more than what a cache saves


class Displacement(Protocol):
    """What parameters are moved along: a direction, or anything that gives its elements chunk by chunk."""

    def chunk(
        self, parameter: int, start: int, end: int, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Elements [start, end) for one parameter; the caller may overwrite them."""


class Direction(NamedTuple):
    """The key of one direction: with a parameter's id it gives z (see `helene.noise`).

    ``signs`` makes it a Rademacher direction; else z is standard normal.
    """

    seed: int
    step: int
    draw: int = 0
    signs: bool = False

    def chunk(
        self, parameter: int, start: int, end: int, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Elements [start, end) of z for one parameter: float32 values in the dtype asked for."""
        draw = noise.signs if self.signs else noise.normal
        return draw(self.seed, self.step, self.draw, parameter, start, end - start, device).to(dtype)


class Target(NamedTuple):
    """A parameter to perturb: its tensor, its id in `helene.noise`, its name in messages, its layer's position."""

    tensor: nn.Parameter
    id: int
    name: str
    layer: int = 0


def chunks(size: int, device: torch.device | None = None) -> Iterator[tuple[int, int]]:
    """Bounds [start, end) of the pieces in which a flat tensor of that size is processed (larger ones off the CPU)."""
    chunk = CHUNK if device is None or device.type == "cpu" else DEVICE_CHUNK
    for start in range(0, size, chunk):
        yield start, min(start + chunk, size)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype arithmetic is done in: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def write_perturbed(out: Tensor, theta: Tensor, parameter: int, direction: Displacement, radius: float) -> None:
    """out ← theta + radius · z, in float32 (float64 for float64 parameters), rounded once to out's dtype.

    Args:
        out: Of theta's shape and dtype; theta itself will do.
        theta: A parameter.
        parameter: Its id in `helene.noise`.
        direction: What gives z.
        radius: What z is multiplied by.
    """
    source, sink = theta.reshape(-1), out.view(-1) if out.is_contiguous() else torch.empty_like(theta).reshape(-1)
    size, wide = theta.numel(), compute_dtype(theta.dtype)
    for start, end in chunks(size, theta.device):
        here, there = (source, sink) if end - start == size else (source[start:end], sink[start:end])
        z = direction.chunk(parameter, start, end, theta.device, wide)
        if theta.dtype == wide:
            torch.add(here, z, alpha=radius, out=there)
        else:
            there.copy_(torch.add(here.to(wide), z, alpha=radius))
    if not out.is_contiguous():
        out.copy_(sink.view(theta.shape))
