"""Perturbed copies by block: many parameters in one launch, laid out once and written at each probe."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from helene import kernels
from helene.evaluation.directions import Direction, Displacement, Target, write_perturbed

if TYPE_CHECKING:
    from helene.kernels.control import Control

ALIGNMENT = 64  # bytes between copies
LEAST_BYTES = 4 << 20  # see `least_bytes`


def least_bytes(device: torch.device) -> int:
    """Bytes of scratch memory to hold, as far as there are parameters: on a GPU a launch costs more than they do."""
    return 0 if device.type == "cpu" else LEAST_BYTES


class Block:
    """theta + eps z and theta − eps z of some parameters of one device, in memory that is given.

    Attributes:
        views: By sign, parameter's index -> copy, of its shape and strides.
    """

    def __init__(
        self,
        targets: Mapping[int, Target],
        thetas: Mapping[int, Tensor],
        offsets: Mapping[int, int],
        regions: Mapping[int, Tensor],
    ) -> None:
        """Lay it out.

        Args:
            targets: The parameters by index.
            thetas: Their own memory, whatever they point at.
            offsets: Where each copy starts in a region, in bytes.
            regions: Bytes for the copies of each sign, 1 and −1; both may be the same ones.
        """
        self._targets, self._thetas, self._regions = targets, thetas, regions
        first = self._laid(offsets, regions[1])
        self.views = {1: first, -1: first if regions[-1] is regions[1] else self._laid(offsets, regions[-1])}
        fast = [i for i in targets if kernels.has_kernel(thetas[i])]
        self._slow = [i for i in targets if i not in set(fast)]
        self._tables = []
        if fast:
            from helene.kernels.tiles import Piece, tables_of

            places = [(thetas[i], targets[i].id, offsets[i] // thetas[i].element_size()) for i in fast]
            self._tables = tables_of([Piece(theta, parameter, out) for theta, parameter, out in places])

    def _laid(self, offsets: Mapping[int, int], region: Tensor) -> dict[int, Tensor]:
        return {i: _view(region, offsets[i], theta) for i, theta in self._thetas.items()}

    def write(self, signs: tuple[int, ...], direction: Displacement, eps: float, control: Control | None) -> None:
        """Write the copies of some signs, both in one pass where both are asked for.

        Args:
            signs: Of 1 and −1.
            direction: What gives z.
            eps: The radius.
            control: Key and radius on the device, for the kernels; they do nothing without.
        """
        slow: Iterable[int] = self._targets
        if control is not None and isinstance(direction, Direction):
            slow = self._slow
            if self._tables:
                from helene.kernels import launch
            for table in self._tables:
                plus, minus = (self._regions[s].view(table.base.dtype) if s in signs else None for s in (1, -1))
                launch.perturb(table, plus, minus, control.key, control.values, signs=direction.signs)
        for sign in signs:
            for i in slow:
                write_perturbed(self.views[sign][i], self._thetas[i], self._targets[i].id, direction, sign * eps)


def _view(region: Tensor, offset: int, like: Tensor) -> Tensor:
    """Elements of a region of bytes as a tensor of another's shape, and of its strides where these leave no gaps."""
    flat = region[offset : offset + like.nbytes].view(like.dtype)
    if like.is_contiguous():
        return flat.view(like.shape)
    return flat.as_strided(like.shape, torch.empty_like(like, device="meta").stride(), flat.storage_offset())


class Scratch:
    """Scratch memory: bytes on each device, as many as the most that were in use at one time."""

    def __init__(self) -> None:
        self.buffers: dict[torch.device, Tensor] = {}
        self.peak = 0

    def region(self, device: torch.device, start: int, size: int, grows: bool) -> tuple[Tensor, bool]:
        """That many bytes from a place on, and whether they are held: memory of their own where there is too little.

        Args:
            device: Where.
            start: The first of them.
            size: How many.
            grows: Whether there shall be enough from the next probe on.
        """
        self.peak = max(self.peak, (start + size) * grows)
        buffer = self.buffers.setdefault(device, torch.empty(0, dtype=torch.uint8, device=device))
        if start + size > buffer.numel():
            return torch.empty(size, dtype=torch.uint8, device=device), False
        return buffer[start : start + size], True

    def settle(self, whole: int) -> None:
        """Grow the buffers to the peak, so that the next probe allocates nothing; see `least_bytes`.

        Args:
            whole: Bytes of all copies.
        """
        for device, buffer in self.buffers.items():
            size = max(self.peak, min(whole, least_bytes(device)))
            if buffer.numel() < size:
                self.buffers[device] = torch.empty(size, dtype=torch.uint8, device=device)

    @property
    def num_bytes(self) -> int:
        """Bytes held between steps."""
        return sum(buffer.numel() for buffer in self.buffers.values())


class Copies:
    """The blocks of some parameters in scratch memory, kept while neither moves.

    Attributes:
        targets: The parameters.
        sizes: Bytes of each copy, with what keeps the next one aligned.
        thetas: Their own memory, whatever they point at.
        moves: How often parameters or scratch memory have moved, and with them every block.
        short: Whether scratch memory had too little room for a block since this was last set.
    """

    def __init__(self, targets: Sequence[Target], scratch: Scratch) -> None:
        self.targets, self.scratch = targets, scratch
        self.sizes: list[int] = []
        self.moves, self.short = 0, False
        self.thetas: list[Tensor] = []
        self._seen: object = None
        self._held: dict[tuple[tuple[int, ...], int], list[Block]] = {}
        self._controls: dict[torch.device, Control] = {}
        self._sent: object = None

    @property
    def room(self) -> int:
        """Bytes of scratch memory of the device that has least."""
        return min((buffer.numel() for buffer in self.scratch.buffers.values()), default=0)

    def begin(self, direction: Displacement, radius: float) -> None:
        """Before the copies of a probe, the parameters at their own memory: look what has moved, send the step."""
        buffers = self.scratch.buffers
        seen = (
            [(t.tensor.data_ptr(), t.tensor.shape, t.tensor.stride()) for t in self.targets],
            {device: buffer.data_ptr() for device, buffer in buffers.items()},
            os.environ.get(kernels.VARIABLE),
        )
        if seen != self._seen:
            self._held.clear()
            self.moves += 1
            self.sizes = [-(-t.tensor.nbytes // ALIGNMENT) * ALIGNMENT for t in self.targets]
            self.thetas, self._sent = [t.tensor.detach() for t in self.targets], None
            self._controls = self._made_controls()
            self._seen = seen  # at last, so that what an interrupt cuts short is made again
        if self._controls and isinstance(direction, Direction) and (direction, abs(radius)) != self._sent:
            key: tuple[int, int, int, bool] = direction
            for control in self._controls.values():
                control.send(key[:3], abs(radius))
            self._sent = direction, abs(radius)

    def _made_controls(self) -> dict[torch.device, Control]:
        devices = {theta.device for theta in self.thetas if kernels.has_kernel(theta)}
        if not devices:
            return {}
        from helene.kernels.control import Control

        return {device: self._controls.get(device) or Control(device) for device in devices}

    def at(self, indices: tuple[int, ...], start: int, grows: bool = True) -> list[Block]:
        """Blocks of parameters whose copies follow each other from a place on, one a device; see `Scratch.region`."""
        held = self._held.get((indices, start))
        if held is not None:
            return held
        offsets, size = {}, 0
        for i in indices:
            offsets[i] = size
            size += self.sizes[i]
        blocks, kept = [], True
        for device in dict.fromkeys(self.thetas[i].device for i in indices):
            region, lasts = self.scratch.region(device, start, size, grows)
            targets = {i: self.targets[i] for i in indices if self.thetas[i].device == device}
            thetas = {i: self.thetas[i] for i in targets}
            blocks.append(Block(targets, thetas, offsets, {1: region, -1: region}))
            kept = kept and lasts
        self.short = self.short or not kept
        if kept:
            if len(self._held) > 4 * len(self.targets):
                self._held.clear()  # forwards that change all the time
            self._held[indices, start] = blocks
        return blocks

    def write(self, block: Block, direction: Displacement, radius: float) -> dict[int, Tensor]:
        """Write a block's copies at a radius, which may be negative, and give them by index."""
        sign, device = -1 if radius < 0 else 1, next(iter(block.views[1].values())).device
        block.write((sign,), direction, abs(radius), self._controls.get(device))
        return block.views[sign]
