"""Scratch memory and the perturbed copies in it."""

from __future__ import annotations

import torch
from torch import Tensor

from helene.engine.pairs.schedule import Schedule, Unit
from helene.engine.pairs.shared import Shared
from helene.evaluation.blocks import Block
from helene.kernels.tiles import Piece, Tiles


class Copies:
    """The copies of a schedule: those of its units in a ring of scratch memory, and those that last.

    Args:
        shared: Whose ring is used, where it is large enough.
        schedule: Which parameters are copied when.
    """

    def __init__(self, shared: Shared, schedule: Schedule) -> None:
        self._shared, self.schedule, ring = shared, schedule, shared.ring
        if ring is None or ring.numel() < schedule.ring_bytes:
            ring = torch.empty(schedule.ring_bytes, dtype=torch.uint8, device=shared.device)
        self.ring = ring
        self._units = [self._block(unit, ring) for unit in schedule.units]
        self._resident: Block | None = None
        if schedule.resident is not None:
            self._store = torch.empty(2 * schedule.resident.size, dtype=torch.uint8, device=shared.device)
            self._resident = self._block(schedule.resident, self._store)
        self._row_tiles: dict[int, Tiles] = {}
        for call in schedule.calls if shared.fused else ():
            if call.rows:
                target = shared.targets[call.owned[0]]
                self._row_tiles[call.owned[0]] = Tiles([Piece(target.tensor.detach(), target.id)])

    def _block(self, unit: Unit, buffer: Tensor) -> Block:
        targets = {i: self._shared.targets[i] for i in unit.owned}
        thetas = {i: target.tensor.detach() for i, target in targets.items()}
        starts = {1: unit.start, -1: unit.start + unit.size if unit.together else unit.start}
        regions = {sign: buffer[start : start + unit.size] for sign, start in starts.items()}
        return Block(targets, thetas, dict(zip(unit.owned, unit.offsets, strict=True)), regions)

    def _write(self, block: Block, signs: tuple[int, ...]) -> None:
        shared = self._shared
        block.write(signs, shared.direction, shared.eps, shared.updates.control)

    @property
    def regions(self) -> list[tuple[int, int]]:
        """Spans of memory that hold copies."""
        held = [self.ring] if self._units else []
        held += [self._store] if self._resident is not None else []
        return [(buffer.data_ptr(), buffer.data_ptr() + buffer.numel()) for buffer in held if buffer.numel()]

    def views(self, unit: int, sign: int) -> dict[int, Tensor]:
        """Copies that a lane reads during a unit: parameter's index -> tensor of its shape."""
        lasting = self._resident.views[sign] if self._resident is not None else {}
        return lasting if unit < 0 else {**lasting, **self._units[unit].views[sign]}

    def write_resident(self) -> None:
        """Write the copies that last for the whole forward."""
        if self._resident is not None:
            self._write(self._resident, (1, -1))

    def write(self, unit: int, signs: tuple[int, ...]) -> None:
        """Write a unit's copies."""
        self._write(self._units[unit], signs)

    def rows(self, sign: int, index: int, ids: Tensor) -> Tensor:
        """Rows of a perturbed matrix."""
        from helene.kernels import launch

        updates = self._shared.updates
        return launch.gather(
            self._row_tiles[index], ids, sign, updates.key, updates.values, signs=self._shared.direction.signs
        )
