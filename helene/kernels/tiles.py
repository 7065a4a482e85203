"""Many parameters as one launch: a table that tells each program of a kernel which piece of which parameter is its."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from helene.noise.keys import MASK

# Elements a program, without and with state, the fastest on an H100; multiples of `helene.rules.precision.BLOCK`.
TILE, STATE_TILE = 2048, 1024
SPAN, BLOCK_SPAN = 32, 64  # fours of a row in a tile of several rows; the second holds whole blocks of 8-bit state
# Of a row: theta, out or gradient, first tile, numel, id low, id high, group, four of state, columns, width.
NUM_FIELDS = 13


class Piece(NamedTuple):
    """One parameter in a launch.

    Attributes:
        theta: Its tensor, contiguous.
        id: Its id in `helene.noise`.
        out: Where its copy starts in the scratch buffer, or its numbers in those of
            `helene.evaluation.grouped.factors`, in elements.
        group: Row of its hyper-parameters.
        state: Its state tensors, flat.
        stochastic: Whether an update of it is rounded stochastically.
        columns: Of a matrix that moves along directions of low rank, else 0.
        gradient: What it moves along where that lies in memory; ``out`` is then not looked at.
    """

    theta: Tensor
    id: int
    out: int = 0
    group: int = 0
    state: tuple[Tensor, ...] = ()
    stochastic: bool = False
    columns: int = 0
    gradient: Tensor | None = None


class Tiles:
    """The table of a launch over parameters of one dtype, on their device.

    Parameters and state stay where they are: a row holds their distance, in elements, from a base tensor that is the
    kernel's pointer. A table is therefore good only as long as no tensor in it moves.

    Args:
        pieces: The parameters, all of one dtype and device, contiguous.

    Attributes:
        given: Whether they move along gradients that lie in memory.
        aligned: Whether every tensor starts at a multiple of 16 bytes, so that accesses can be wide.
        quads: Whether every parameter is a whole number of four elements.

    Raises:
        ValueError: If there is none, dtypes or devices differ, one is not contiguous, or some gradients are missing.
    """

    def __init__(self, pieces: Sequence[Piece]) -> None:
        if not pieces:
            raise ValueError("a launch needs at least one parameter, got none")
        gradients = [piece.gradient for piece in pieces if piece.gradient is not None]
        moved = [piece.theta for piece in pieces] + gradients
        kinds = {(tensor.dtype, tensor.device) for tensor in moved}
        if len(kinds) > 1:
            raise ValueError(f"a launch takes one dtype and device, got {sorted(map(str, kinds))}; split them")
        if not all(tensor.is_contiguous() for tensor in moved):
            raise ValueError("parameters in a launch must be contiguous; use the path without kernels for the others")
        if gradients and len(gradients) < len(pieces):
            raise ValueError(f"{len(gradients)} of {len(pieces)} parameters have a gradient; split them")
        self.given = bool(gradients)
        self.pieces = [piece for piece in pieces if piece.theta.numel()]
        self.tile = STATE_TILE if any(piece.state for piece in pieces) else TILE
        device = pieces[0].theta.device
        self.base = _lowest([piece.theta for piece in self.pieces] or [pieces[0].theta])
        self.state = [_lowest(list(column)) for column in zip(*(p.state for p in self.pieces), strict=True)]
        self.span = BLOCK_SPAN if any(tensor.element_size() == 1 for tensor in self.state) else SPAN
        rows, owners, first = [], [], 0
        for index, piece in enumerate(self.pieces):
            width, count = self._tiled(piece)
            state = [_distance(tensor, base) for tensor, base in zip(piece.state, self.state, strict=True)]
            rows.append(
                [
                    _distance(piece.theta, self.base),
                    piece.out if piece.gradient is None else _distance(piece.gradient, piece.theta),
                    first,
                    piece.theta.numel(),
                    piece.id & MASK,
                    piece.id >> 32,
                    piece.group,
                    *state,
                ]
            )
            rows[-1] += [0] * (NUM_FIELDS - 2 - len(rows[-1])) + [piece.columns, width]
            owners.append(torch.full((count,), index, dtype=torch.int32))
            first += count
        self.num_tiles = first
        self.rows = torch.tensor(rows or [[0] * NUM_FIELDS], dtype=torch.int64).to(device)
        self.owners = torch.cat(owners or [torch.zeros(1, dtype=torch.int32)]).to(device)
        self.stochastic = any(piece.stochastic for piece in self.pieces)
        addresses = [t.data_ptr() for piece in self.pieces for t in (piece.theta, *piece.state)]
        self.aligned = all(address % 16 == 0 for address in addresses) and all(row[1] % 8 == 0 for row in rows)
        self.quads = all(piece.theta.numel() % 4 == 0 for piece in self.pieces)

    def _tiled(self, piece: Piece) -> tuple[int, int]:
        """How many fours wide the rows are that a piece's tiles follow, and how many tiles it has.

        Tiles of a matrix that moves along directions of low rank are several rows of some columns, where both sides are
        whole numbers of these. All others are consecutive elements: rows as wide as a tile's.
        """
        columns, numel, rows = piece.columns, piece.theta.numel(), self.tile // (4 * self.span)
        fits = columns and columns % (4 * self.span) == 0 and numel // columns % rows == 0
        return columns // 4 if fits else self.span, -(-numel // self.tile)

    @property
    def num_bytes(self) -> int:
        """Bytes of the table."""
        return self.rows.nbytes + self.owners.nbytes


def tables_of(pieces: Sequence[Piece]) -> list[Tiles]:
    """A table for each kind: dtype and device, how the state is stored, how updates are rounded."""
    by_kind: dict[Any, list[Piece]] = {}
    for piece in pieces:
        stored = tuple(tensor.dtype for tensor in piece.state)
        by_kind.setdefault((piece.theta.dtype, piece.theta.device, stored, piece.stochastic), []).append(piece)
    return [Tiles(same) for same in by_kind.values()]


def _lowest(tensors: list[Tensor]) -> Tensor:
    return min(tensors, key=lambda tensor: tensor.data_ptr()).detach()


def _distance(tensor: Tensor, base: Tensor) -> int:
    gap, rest = divmod(tensor.data_ptr() - base.data_ptr(), base.element_size())
    if rest:
        raise ValueError("tensors of a launch must lie a whole number of elements apart")
    return gap
