"""What parameters are moved along, chunk by chunk, and their perturbed copies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from helene import kernels, noise

CHUNK = 1 << 17  # elements handled at once, so that temporaries stay in cache and memory stays bounded
_ALIGNED = 8  # numbers: a parameter's start at a multiple of 32 bytes, which a kernel's wide accesses need
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


class Drawn:
    """Elements of directions for each of some parameters, in memory that stays; 0 before the first `draw`.

    Args:
        targets: The parameters.
        sizes: How many of each: the first of its elements, or more than it has.
        wide: Whether those of float64 parameters are float64; else all are float32.

    Attributes:
        flats: All of them on a device and of a dtype, one axis.
        parts: Those of each parameter, views of these.
    """

    def __init__(self, targets: Sequence[Target], sizes: Sequence[int], wide: bool = False) -> None:
        self._ids, places, ends = [target.id for target in targets], [], dict[tuple[torch.device, torch.dtype], int]()
        for target, size in zip(targets, sizes, strict=True):
            kind = target.tensor.device, compute_dtype(target.tensor.dtype) if wide else torch.float32
            start = ends.get(kind, 0)
            places.append((kind, start, size))
            ends[kind] = start + -(-size // _ALIGNED) * _ALIGNED
        self.flats = {kind: torch.zeros(end, device=kind[0], dtype=kind[1]) for kind, end in ends.items()}
        self.parts = [self.flats[kind][start : start + size] for kind, start, size in places]
        self._launched: list[tuple[Any, Any]] = []  # tables of what is drawn, with the step that they read

    def draw(self, direction: Direction, radius: float = 1.0) -> None:
        """Have radius · z of a direction: in one launch a device, where kernels are."""
        if all(map(kernels.has_kernel, self.flats.values())):
            self._launch(direction, radius)
            return
        for part, parameter in zip(self.parts, self._ids, strict=True):
            for start, end in chunks(part.numel(), part.device):
                z = direction.chunk(parameter, start, end, part.device, part.dtype)
                torch.mul(z, radius, out=part[start:end])

    def _launch(self, direction: Direction, radius: float) -> None:
        """Perturbed copies of zeros."""
        from helene.kernels import launch
        from helene.kernels.control import Control
        from helene.kernels.tiles import Piece, tables_of

        if not self._launched:
            found = zip(self.parts, self._ids, strict=True)
            pieces = [Piece(part, parameter, int(part.storage_offset())) for part, parameter in found]
            self._launched = [(table, Control(table.base.device)) for table in tables_of(pieces)]
        for flat in self.flats.values():
            flat.zero_()
        for table, control in self._launched:
            control.send((direction.seed, direction.step, direction.draw), radius)
            flat = self.flats[table.base.device, torch.float32]
            launch.perturb(table, flat, None, control.key, control.values, signs=direction.signs)


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
