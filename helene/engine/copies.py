"""Scratch memory and the perturbed copies in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from helene.directions import Direction, Target, write_perturbed
from helene.engine.schedule import Plan, Unit
from helene.kernels.tiles import Piece, Tiles, tables_of


class Copies:
    """theta ± eps z of the units of a plan, in a ring of scratch memory.

    Args:
        targets: The trained parameters.
        plan: Which of them are copied when.
        ring: Scratch memory to use, flat bytes; made when missing or too small.
        fused: Whether the Triton kernels write the copies, reading the key from ``control`` and ``values``.
        control: int64 on the device: seed, step, draw.
        values: float32 on the device, the first is eps.
        key: Gives the direction and eps of the current step, for the path without kernels.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        plan: Plan,
        ring: Tensor | None,
        fused: bool,
        control: Tensor,
        values: Tensor,
        key: Callable[[], tuple[Direction, float]],
    ) -> None:
        self.targets, self.plan, self.fused, self.control, self.values = targets, plan, fused, control, values
        self.key = key
        device = targets[0].tensor.device
        if ring is None or ring.numel() < plan.ring_bytes:
            ring = torch.empty(plan.ring_bytes, dtype=torch.uint8, device=device)
        self.ring = ring
        self._views = [self._views_of(unit, ring, unit.start, unit.together) for unit in plan.units]
        self._resident: dict[int, dict[int, Tensor]] = {1: {}, -1: {}}
        if plan.resident is not None:
            self._store = torch.empty(2 * plan.resident.size, dtype=torch.uint8, device=device)
            self._resident = self._views_of(plan.resident, self._store, 0, True)
        self._tiles = [self._tables(unit) if fused else [] for unit in plan.units]
        self._resident_tiles = self._tables(plan.resident) if fused and plan.resident else []
        self._row_tiles: dict[int, Tiles] = {}
        if fused:
            for call in plan.calls:
                if call.rows:
                    target = targets[call.owned[0]]
                    self._row_tiles[call.owned[0]] = Tiles([Piece(target.tensor.detach(), target.id)])

    @property
    def num_bytes(self) -> int:
        """Bytes of scratch memory."""
        return self.plan.scratch_bytes

    @property
    def regions(self) -> list[tuple[int, int]]:
        """Spans of memory that hold copies."""
        held = [self.ring] if self.plan.units else []
        held += [self._store] if self.plan.resident is not None else []
        return [(buffer.data_ptr(), buffer.data_ptr() + buffer.numel()) for buffer in held if buffer.numel()]

    def views(self, unit: int, sign: int) -> dict[int, Tensor]:
        """Copies that a lane reads during a unit: parameter's index -> tensor of its shape."""
        return self._resident[sign] if unit < 0 else {**self._resident[sign], **self._views[unit][sign]}

    def write_resident(self) -> None:
        """Write the copies that last for the whole forward."""
        if self.plan.resident is not None:
            self._write(self.plan.resident, self._resident, self._resident_tiles, self._store, 0, (1, -1))

    def write(self, unit: int, signs: tuple[int, ...]) -> None:
        """Write a unit's copies; both signs in one pass where both are asked for."""
        it = self.plan.units[unit]
        self._write(it, self._views[unit], self._tiles[unit], self.ring, it.start, signs)

    def rows(self, sign: int, index: int, ids: Tensor) -> Tensor:
        """Rows of a perturbed matrix."""
        from helene.kernels import launch

        return launch.gather(self._row_tiles[index], ids, sign, self.control, self.values)

    def _write(
        self,
        unit: Unit,
        views: dict[int, dict[int, Tensor]],
        tiles: list[Tiles],
        buffer: Tensor,
        start: int,
        signs: tuple[int, ...],
    ) -> None:
        if not self.fused:
            direction, eps = self.key()
            for sign in signs:
                outs, owned = [views[sign][i] for i in unit.owned], [self.targets[i] for i in unit.owned]
                write_perturbed(outs, owned, direction, sign * eps)
            return
        from helene.kernels import launch

        def region(sign: int, dtype: torch.dtype) -> Tensor:
            first = start + unit.size if sign < 0 and unit.together else start
            return buffer[first : first + unit.size].view(dtype)

        for table in tiles:
            found = [region(s, table.base.dtype) if s in signs else None for s in (1, -1)]
            launch.perturb(table, found[0], found[1], self.control, self.values)

    def _views_of(self, unit: Unit, buffer: Tensor, start: int, together: bool) -> dict[int, dict[int, Tensor]]:
        found: dict[int, dict[int, Tensor]] = {1: {}, -1: {}}
        for sign, first in ((1, start), (-1, start + unit.size if together else start)):
            for index, offset in zip(unit.owned, unit.offsets, strict=True):
                like = self.targets[index].tensor
                flat = buffer[first + offset : first + offset + like.nbytes].view(like.dtype)
                found[sign][index] = flat.view(like.shape)
        return found

    def _tables(self, unit: Unit) -> list[Tiles]:
        """Tables of a unit's parameters."""
        pieces = []
        for index, offset in zip(unit.owned, unit.offsets, strict=True):
            target = self.targets[index]
            out = offset // target.tensor.element_size()
            pieces.append(Piece(target.tensor.detach(), target.id, out))
        return tables_of(pieces)
