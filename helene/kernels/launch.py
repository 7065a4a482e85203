"""Plain functions around the Triton kernels; imported only where `helene.kernels.backend` says ``triton``."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from helene.kernels import codes
from helene.kernels import low_rank as products
from helene.kernels import perturb as kernels
from helene.kernels import update as updates
from helene.kernels.control import control_words
from helene.kernels.tiles import NUM_FIELDS, TILE, Tiles
from helene.noise import keys

ROUNDS = keys.ROUNDS
FAST = os.environ.get("TRITON_INTERPRET") != "1"  # see helene.kernels.philox
_BLOCKS = TILE // 4


def _on(tensor: Tensor) -> AbstractContextManager[object]:
    """Triton launches on the current device, whatever the tensors are on."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


class LowRank(NamedTuple):
    """Directions of low rank; see `helene.kernels.low_rank`.

    Attributes:
        numbers: What was drawn, float32, on the device.
        rank: Of each.
        scale: rank^-1/2.
    """

    numbers: Tensor
    rank: int = 0
    scale: float = 1.0


def fill(
    seed: int,
    step: int,
    draw: int,
    parameter: int,
    start: int,
    count: int,
    device: torch.device,
    *,
    raw: bool = False,
    rounds: int = ROUNDS,
    fast: bool = FAST,
) -> Tensor:
    """Elements [start, start + count) of z (float32), or of the generator's words (int32, ``raw``), shape (count,)."""
    first, last = keys.blocks(start, count)
    words = control_words(seed, step, draw, parameter & keys.MASK, parameter >> 32, first)
    control = torch.tensor(words, dtype=torch.int64).to(device)
    out = torch.empty(4 * (last - first), dtype=torch.int32 if raw else torch.float32, device=device)
    if last > first:
        grid = (triton.cdiv(last - first, _BLOCKS),)
        with _on(out):
            kernels.fill[grid](out, control, last - first, raw, rounds, fast, _BLOCKS, num_warps=kernels.NUM_WARPS)
    return out[start - 4 * first :][:count]


def perturb(
    tiles: Tiles,
    plus: Tensor | None,
    minus: Tensor | None,
    control: Tensor,
    values: Tensor,
    *,
    signs: bool = False,
    rounds: int = ROUNDS,
    fast: bool = FAST,
    num_warps: int = kernels.NUM_WARPS,
) -> None:
    """plus ← theta + eps z and minus ← theta − eps z, each where it is given, for all parameters of a table.

    Args:
        tiles: The parameters and where their copies lie in ``plus`` and ``minus``.
        plus: Flat buffer of theta's dtype, or None.
        minus: The same for the other sign.
        control: int64 on the device: seed, step, draw (`control_words`).
        values: float32 on the device, the first is eps.
        signs: Whether z is a Rademacher direction.
        rounds: Of the generator; for measurements.
        fast: Whether to use the hardware's sine and cosine; for measurements.
        num_warps: Of a program; for measurements.
    """
    sink = plus if plus is not None else minus
    if not tiles.num_tiles or sink is None:
        return
    with _on(tiles.base):
        kernels.perturb[(tiles.num_tiles,)](
            tiles.base,
            sink if plus is None else plus,
            sink if minus is None else minus,
            tiles.rows,
            tiles.owners,
            control,
            values,
            NUM_FIELDS,
            plus is not None,
            minus is not None,
            tiles.aligned and sink.data_ptr() % 16 == 0,
            tiles.quads,
            tiles.tile,
            rounds,
            fast,
            signs,
            num_warps=num_warps,
        )


def gather(tiles: Tiles, ids: Tensor, sign: int, control: Tensor, values: Tensor, *, signs: bool = False) -> Tensor:
    """Rows ``ids`` of theta + sign · eps z, theta being the one matrix of the table; like an embedding's forward.

    Returns:
        Tensor of ids' shape with one more axis, of columns. Rows that do not exist are nan.

    Raises:
        ValueError: If the number of columns is no multiple of 4: a row would then start inside a block.
    """
    theta = tiles.pieces[0].theta
    num_rows, columns = theta.shape
    if columns % 4:
        raise ValueError(f"the matrix has {columns} columns; a multiple of 4 is needed, copy it whole instead")
    out = torch.empty(*ids.shape, columns, dtype=theta.dtype, device=theta.device)
    if ids.numel():
        blocks = min(triton.next_power_of_2(columns // 4), 512)
        grid = (ids.numel(), triton.cdiv(columns // 4, blocks))
        with _on(theta):
            kernels.gather[grid](
                theta, ids.contiguous(), out, tiles.rows, control, values, num_rows, sign, columns // 4, blocks,
                ROUNDS, FAST, signs, num_warps=kernels.NUM_WARPS,
            )  # fmt: skip
    return out


def update(
    tiles: Tiles,
    method: int,
    control: Tensor,
    values: Tensor,
    hypers: Tensor,
    weights: Tensor | None = None,
    low_rank: LowRank | None = None,
    *,
    signs: bool = False,
    rounds: int = ROUNDS,
    fast: bool = FAST,
    num_warps: int = kernels.NUM_WARPS,
) -> None:
    """One step of a method for all parameters of a table, in place.

    Args:
        tiles: The parameters with their state: two tensors for each of the method's, its storage and its scales. Those
            with gradients move along these, and along no direction.
        method: A code of `helene.kernels.codes`.
        control: int64 on the device: seed, step, draw.
        values: float32 on the device: eps, c, and 1 (0 to leave everything as it is).
        hypers: float32 on the device, shape (groups, `codes.NUM_HYPERS`).
        weights: float32 on the device: one a direction, where there are several or they are of low rank. Draws of dense
            ones follow one another.
        low_rank: What directions are in the place of z.
        signs: Whether z is a Rademacher direction.
        rounds: Of the generator; for measurements.
        fast: The hardware's cosine; for measurements.
        num_warps: For measurements.
    """
    if not tiles.num_tiles:
        return
    kinds, tensors = _state_of(tiles, values)
    numbers, *form = low_rank or LowRank(values)
    directions = 0 if tiles.given else 1 if weights is None else weights.numel()
    with _on(tiles.base):
        updates.update[(tiles.num_tiles,)](
            tiles.base,
            *tensors,
            tiles.rows,
            tiles.owners,
            control,
            values,
            hypers,
            numbers,
            values if weights is None else weights,
            directions,
            *form,
            NUM_FIELDS,
            codes.NUM_HYPERS,
            method,
            *kinds,
            tiles.stochastic,
            tiles.aligned,
            tiles.quads,
            tiles.tile,
            tiles.span,
            rounds,
            fast,
            signs,
            keys.ROUNDING_DRAW,
            keys.STATE_DRAW,
            num_warps=num_warps,
            enable_fp_fusion=False,
        )


def add_product(
    y: Tensor,
    x: Tensor,
    numbers: Tensor,
    radius: float,
    groups: int,
    mirrored: bool,
    seen: int,
    given: int,
    bias: Tensor | None = None,
    own: int = 0,
) -> None:
    """y += radius x u_g v_gᵀ for the rows of each group, and its bias; one launch, in place.

    Args:
        y: Shape (..., out), contiguous; groups are equal parts of its places, in their order.
        x: Shape (..., in), contiguous, of any floating dtype.
        numbers: Of `helene.evaluation.grouped.factors`, rank 1.
        radius: What z is multiplied by.
        groups: Number of groups.
        mirrored: Whether the second half of the groups see the opposite directions of the first.
        seen: Where the first group's side that x meets starts in ``numbers``.
        given: The same of the other side.
        bias: A trained vector of ``out`` elements to add, with its own z.
        own: Where that starts.
    """
    num_in, num_out = x.shape[-1], y.shape[-1]
    num_places = y.numel() // max(1, num_out)
    if not y.numel():
        return
    each, places = num_places // groups, 4
    block = min(2048, triton.next_power_of_2(max(num_in, num_out)))
    span = min(8192, triton.next_power_of_2(num_out))
    with _on(y):
        products.add_product[(triton.cdiv(num_places, places), triton.cdiv(num_out, span))](
            y, x, numbers, y if bias is None else bias, radius, num_places, each, seen, given, own, num_in, num_out,
            bias is not None, groups // 2 if mirrored else 0, each % places == 0, places, block, span, num_warps=8,
        )  # fmt: skip


def _state_of(tiles: Tiles, filler: Tensor) -> tuple[list[int], list[Tensor]]:
    """How the state of a table is stored, and its tensors: storage and scales, twice; the filler where none is."""
    kinds, tensors = [], []
    for stored, scales in (tiles.state[i : i + 2] for i in range(0, len(tiles.state), 2)):
        kinds.append(codes.kind_of(stored))
        tensors += [stored, scales]
    while len(kinds) < 2:
        kinds.append(codes.NONE)
        tensors += [filler, filler]
    return kinds, tensors
