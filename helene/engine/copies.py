"""Scratch memory and the perturbed copies in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from helene.engine.schedule import Schedule, Unit
from helene.evaluation.directions import write_perturbed
from helene.kernels.tiles import Piece, Tiles, tables_of

if TYPE_CHECKING:
    from helene.engine.batch_step import Shared


class UnitCopies:
    """theta ± eps z of one unit's parameters, where the schedule has placed them in a buffer of bytes.

    Attributes:
        views: By sign, parameter's index -> tensor of its shape.
    """

    def __init__(self, shared: Shared, unit: Unit, buffer: Tensor) -> None:
        self._shared, self._unit = shared, unit
        self._targets = [shared.targets[i] for i in unit.owned]
        starts = {1: unit.start, -1: unit.start + unit.size if unit.together else unit.start}
        self._regions = {sign: buffer[start : start + unit.size] for sign, start in starts.items()}
        self.views: dict[int, dict[int, Tensor]] = {1: {}, -1: {}}
        for sign, region in self._regions.items():
            for i, target, offset in zip(unit.owned, self._targets, unit.offsets, strict=True):
                like = target.tensor
                self.views[sign][i] = region[offset : offset + like.nbytes].view(like.dtype).view(like.shape)
        pieces = [
            Piece(target.tensor.detach(), target.id, offset // target.tensor.element_size())
            for target, offset in zip(self._targets, unit.offsets, strict=True)
        ]
        self._tiles = tables_of(pieces) if shared.fused else []

    def write(self, signs: tuple[int, ...]) -> None:
        """Write the copies; both signs in one pass where both are asked for."""
        shared = self._shared
        if not shared.fused:
            for sign in signs:
                write_perturbed(list(self.views[sign].values()), self._targets, shared.direction, sign * shared.eps)
            return
        from helene.kernels import launch

        for table in self._tiles:
            plus, minus = (self._regions[s].view(table.base.dtype) if s in signs else None for s in (1, -1))
            launch.perturb(table, plus, minus, shared.updates.key, shared.updates.values)


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
        self._units = [UnitCopies(shared, unit, ring) for unit in schedule.units]
        self._resident: UnitCopies | None = None
        if schedule.resident is not None:
            self._store = torch.empty(2 * schedule.resident.size, dtype=torch.uint8, device=shared.device)
            self._resident = UnitCopies(shared, schedule.resident, self._store)
        self._row_tiles: dict[int, Tiles] = {}
        for call in schedule.calls if shared.fused else ():
            if call.rows:
                target = shared.targets[call.owned[0]]
                self._row_tiles[call.owned[0]] = Tiles([Piece(target.tensor.detach(), target.id)])

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
            self._resident.write((1, -1))

    def write(self, unit: int, signs: tuple[int, ...]) -> None:
        """Write a unit's copies."""
        self._units[unit].write(signs)

    def rows(self, sign: int, index: int, ids: Tensor) -> Tensor:
        """Rows of a perturbed matrix."""
        from helene.kernels import launch

        updates = self._shared.updates
        return launch.gather(self._row_tiles[index], ids, sign, updates.key, updates.values)
