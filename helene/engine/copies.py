"""Scratch memory and the perturbed copies in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from helene.directions import Direction, Target, write_perturbed
from helene.engine.plan import Plan, Unit
from helene.kernels.tiles import Piece, Tiles, tables_of


class Deferred(NamedTuple):
    """An update that is made where the next copies are written.

    Attributes:
        method: A code of `helene.kernels.methods`.
        stochastic: Whether 16-bit parameters are rounded stochastically.
        before: Control, values and hyper-parameters of its step.
        pieces: Each parameter with its state.
    """

    method: int
    stochastic: bool
    before: tuple[Tensor, Tensor, Tensor]
    pieces: list[Piece]


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
        deferred: The update that is made with the copies, if any: with a unit's where both signs are written at once,
            of all other parameters by `write_early`.
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
        deferred: Deferred | None = None,
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
        self._deferred = deferred
        self._moving: list[list[Tiles]] = [[] for _ in plan.units]  # tables of what a unit updates and copies
        self._tiles: list[list[Tiles]] = [[] for _ in plan.units]  # and of what it copies only
        self._resident_tiles = self._tables(plan.resident, set(), False) if fused and plan.resident else []
        seen = {i for call in plan.calls if call.rows for i in call.owned}  # read before any unit
        late: set[int] = set()
        for u, unit in enumerate(plan.units if fused else ()):
            moving = set(unit.owned) - seen if deferred is not None and unit.together else set()
            self._moving[u] = self._tables(unit, moving, True)
            self._tiles[u] = self._tables(unit, moving, False)
            seen |= set(unit.owned)
            late |= moving
        pieces = deferred.pieces if deferred is not None else []
        self._early = tables_of([piece for i, piece in enumerate(pieces) if i not in late])
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

    def write_early(self) -> None:
        """Update what is read before its unit is written, or whose unit has room for one sign."""
        if self._deferred is None:
            return
        from helene.kernels import launch

        method, stochastic, before, _ = self._deferred
        for table in self._early:
            launch.update(table, method, *before, stochastic=stochastic)

    def write_resident(self) -> None:
        """Write the copies that last for the whole forward."""
        if self.plan.resident is not None:
            self._write(self.plan.resident, self._resident, [], self._resident_tiles, self._store, 0, (1, -1))

    def write(self, unit: int, signs: tuple[int, ...]) -> None:
        """Write a unit's copies; both signs in one pass where both are asked for."""
        it = self.plan.units[unit]
        self._write(it, self._views[unit], self._moving[unit], self._tiles[unit], self.ring, it.start, signs)

    def rows(self, sign: int, index: int, ids: Tensor) -> Tensor:
        """Rows of a perturbed matrix."""
        from helene.kernels import launch

        return launch.gather(self._row_tiles[index], ids, sign, self.control, self.values)

    def _write(
        self,
        unit: Unit,
        views: dict[int, dict[int, Tensor]],
        moving: list[Tiles],
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

        for table in moving:
            assert self._deferred is not None
            method, stochastic, before, _ = self._deferred
            plus, minus = region(1, table.base.dtype), region(-1, table.base.dtype)
            launch.update_and_perturb(
                table, plus, minus, method, before, self.control, self.values, stochastic=stochastic
            )
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

    def _tables(self, unit: Unit, moving: set[int], wanted: bool) -> list[Tiles]:
        """Tables of a unit's parameters that are (or are not) among the moving ones."""
        pieces = []
        for index, offset in zip(unit.owned, unit.offsets, strict=True):
            if (index in moving) == wanted:
                target = self.targets[index]
                piece = Piece(target.tensor.detach(), target.id)
                if wanted and self._deferred is not None:
                    piece = self._deferred.pieces[index]
                pieces.append(piece._replace(out=offset // target.tensor.element_size()))
        return tables_of(pieces)
