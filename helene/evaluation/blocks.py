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


def aligned(num_bytes: int, alignment: int = ALIGNMENT) -> int:
    """Bytes of a copy, with what keeps the next one aligned."""
    return -(-num_bytes // alignment) * alignment


def least_bytes(device: torch.device) -> int:
    """Bytes of scratch memory to hold, as far as there are parameters: on a GPU a launch costs more than they do."""
    return 0 if device.type == "cpu" else LEAST_BYTES


class Block:
    """theta + eps z and theta − eps z of some parameters of one device, in memory that is given.

    Attributes:
        views: By sign, parameter's index -> copy, of its shape and strides.
        thetas: The parameters' own memory by index, whatever they point at.
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
        self._targets, self.thetas = targets, thetas
        first = self._laid(offsets, regions[1])
        self.views = {1: first, -1: first if regions[-1] is regions[1] else self._laid(offsets, regions[-1])}
        fast = [i for i in targets if kernels.has_kernel(thetas[i])]
        self._slow = [i for i in targets if i not in set(fast)]
        self._launches = []  # a table, and where its copies of each sign go
        if fast:
            from helene.kernels.tiles import Piece, tables_of

            places = [(thetas[i], targets[i].id, offsets[i] // thetas[i].element_size()) for i in fast]
            for table in tables_of([Piece(theta, parameter, out) for theta, parameter, out in places]):
                sinks = {sign: region.view(table.base.dtype) for sign, region in regions.items()}
                self._launches.append((table, sinks))

    def _laid(self, offsets: Mapping[int, int], region: Tensor) -> dict[int, Tensor]:
        return {i: _view(region, offsets[i], theta) for i, theta in self.thetas.items()}

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
            if self._launches:
                from helene.kernels import launch
            for table, sinks in self._launches:
                plus, minus = (sinks[s] if s in signs else None for s in (1, -1))
                launch.perturb(table, plus, minus, control.key, control.values, signs=direction.signs)
        for sign in signs:
            for i in slow:
                write_perturbed(self.views[sign][i], self.thetas[i], self._targets[i].id, direction, sign * eps)


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

    def region(self, device: torch.device, start: int, size: int, grows: bool, apart: bool) -> tuple[Tensor, bool]:
        """That many bytes from a place on, and whether they are held: memory of their own where there is too little.

        Args:
            device: Where.
            start: The first of them.
            size: How many.
            grows: Whether there shall be enough from the next probe on.
            apart: Whether they shall have memory of their own in any case.
        """
        self.peak = max(self.peak, (start + size) * grows)
        buffer = self.buffers.setdefault(device, torch.empty(0, dtype=torch.uint8, device=device))
        if apart or start + size > buffer.numel():
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
        self._tensors = [target.tensor for target in targets]
        self._places: object = None
        self._forms: object = None
        self._held: dict[tuple[tuple[int, ...], int], tuple[list[Block], dict[int, int]]] = {}
        self._controls: dict[torch.device, Control] = {}
        self._sent: tuple[Direction, float] | None = None
        self._awaits: tuple[Direction, float] | None = None

    @property
    def room(self) -> int:
        """Bytes of scratch memory of the device that has least."""
        return min((buffer.numel() for buffer in self.scratch.buffers.values()), default=0)

    def begin(self, direction: Displacement, radius: float) -> bool:
        """Before the copies of a probe, the parameters at their own memory: look what has moved, send the step.

        Whether parameters have other shapes is looked at once for the two probes of a direction.

        Returns:
            Whether this is not the second of these two.
        """
        step = (direction, abs(radius)) if isinstance(direction, Direction) else None
        second = radius < 0 and step is not None and step == self._awaits
        places = (
            [p.data_ptr() for p in self._tensors],
            {device: buffer.data_ptr() for device, buffer in self.scratch.buffers.items()},
            os.environ.get(kernels.VARIABLE),
        )
        forms = self._forms if second else [(p.shape, p.stride()) for p in self._tensors]
        if places != self._places or forms != self._forms:
            self._held.clear()
            self.moves += 1
            self.sizes = [aligned(p.nbytes) for p in self._tensors]
            self.thetas, self._sent = [p.detach() for p in self._tensors], None
            self._controls = self._made_controls()
            self._places, self._forms = places, forms  # at last, so that what an interrupt cuts short is made again
        if step is not None and step != self._sent:
            for control in self._controls.values():
                control.send(step[0][:3], step[1])
            self._sent = step
        self._awaits = step if radius > 0 else None
        return not second

    def _made_controls(self) -> dict[torch.device, Control]:
        devices = {theta.device for theta in self.thetas if kernels.has_kernel(theta)}
        if not devices:
            return {}
        from helene.kernels.control import Control

        return {device: self._controls.get(device) or Control(device) for device in devices}

    def at(
        self, indices: tuple[int, ...], start: int, grows: bool = True, apart: bool = False
    ) -> tuple[list[Block], dict[int, int]]:
        """Blocks of parameters whose copies follow each other from a place on, one a device, and where each copy ends.

        See `Scratch.region`.
        """
        held = None if apart else self._held.get((indices, start))
        if held is not None:
            return held
        offsets, ends, size = {}, {}, 0
        for i in indices:
            offsets[i] = size
            size += self.sizes[i]
            ends[i] = start + size
        blocks, kept = [], True
        for device in dict.fromkeys(self.thetas[i].device for i in indices):
            region, lasts = self.scratch.region(device, start, size, grows, apart)
            targets = {i: self.targets[i] for i in indices if self.thetas[i].device == device}
            thetas = {i: self.thetas[i] for i in targets}
            blocks.append(Block(targets, thetas, offsets, {1: region, -1: region}))
            kept = kept and lasts
        self.short = self.short or not (kept or apart)
        if kept:
            if len(self._held) > 4 * len(self.targets):
                self._held.clear()  # forwards that change all the time
            self._held[indices, start] = blocks, ends
        return blocks, ends

    def write(self, block: Block, direction: Displacement, radius: float) -> dict[int, Tensor]:
        """Write a block's copies at a radius, which may be negative, and give them by index."""
        sign, device = -1 if radius < 0 else 1, next(iter(block.views[1].values())).device
        block.write((sign,), direction, abs(radius), self._controls.get(device))
        return block.views[sign]
