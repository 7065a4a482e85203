r"""Directions of low rank in Triton, from the few numbers that make them (`helene.evaluation.grouped.factors`).

Group g's numbers for a parameter start at ``first`` + g s: of a matrix u_1, ..., u_RANK, then v_1, ..., and
s = RANK (m + n); of a vector, which has 0 columns, z itself.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _of_vector(numbers, weights, first, numel, start, local, inside, GROUPS: tl.constexpr):
    g = tl.zeros([local.shape[0], 4], tl.float32)
    element = start + local[:, None] * 4 + tl.arange(0, 4)[None, :]
    for group in range(GROUPS):
        z = tl.load(numbers + first + group * numel + element, mask=inside, other=0.0)
        g = tl.fma(tl.load(weights + group), z, g)
    return g


@triton.jit
def _of_rows(numbers, weights, first, columns, num_rows, start, GROUPS: tl.constexpr, RANK: tl.constexpr,
             SCALE: tl.constexpr, ROWS: tl.constexpr, SPAN: tl.constexpr):  # fmt: skip
    """A tile that is ROWS whole rows by 4 SPAN columns: what is read of v serves all of its rows."""
    g = tl.zeros([ROWS, SPAN, 4], tl.float32)
    row = start // columns
    left, right = first + row, first + RANK * num_rows + (start - row * columns)
    down = tl.arange(0, ROWS)[:, None, None]
    across = tl.arange(0, SPAN)[None, :, None] * 4 + tl.arange(0, 4)[None, None, :]
    for group in range(GROUPS):
        weight = tl.load(weights + group) * SCALE
        for term in range(RANK):
            u = tl.load(numbers + left + term * num_rows + down)
            v = tl.load(numbers + right + term * columns + across)
            g = tl.fma(tl.broadcast_to(u, g.shape), tl.broadcast_to(weight * v, g.shape), g)
        left += RANK * (num_rows + columns)
        right += RANK * (num_rows + columns)
    return tl.reshape(g, [ROWS * SPAN, 4])


@triton.jit
def _of_matrix(numbers, weights, first, columns, num_rows, start, local, inside, GROUPS: tl.constexpr,
               RANK: tl.constexpr, SCALE: tl.constexpr):  # fmt: skip
    g = tl.zeros([local.shape[0], 4], tl.float32)
    first_row, width = start // columns, columns.to(tl.int32)
    place = local[:, None] * 4 + tl.arange(0, 4)[None, :]
    place += (start - first_row * columns).to(tl.int32)  # counted from the first row's start
    row = place // width
    column = place - row * width
    left, right = first + first_row, first + RANK * num_rows
    for group in range(GROUPS):
        weight = tl.load(weights + group) * SCALE
        for term in range(RANK):
            u = tl.load(numbers + left + term * num_rows + row, mask=inside, other=0.0)
            v = tl.load(numbers + right + term * columns + column, mask=inside, other=0.0)
            g = tl.fma(u, weight * v, g)
        left += RANK * (num_rows + columns)
        right += RANK * (num_rows + columns)
    return g


@triton.jit
def low_rank(numbers, weights, first, columns, width, numel, start, local, inside, GROUPS: tl.constexpr,
             RANK: tl.constexpr, SCALE: tl.constexpr, ROWS: tl.constexpr, SPAN: tl.constexpr):  # fmt: skip
    """Elements of a tile of Σ_g a_g z_g, float32, shape (rows of four, 4), added in the order of g, then of k.

    The tile is that of ``start`` + 4 ``local`` and the three that follow each. Tiles of a matrix of 4 ``width`` columns
    are ROWS rows by SPAN fours.
    """
    if columns == 0:
        g = _of_vector(numbers, weights, first, numel, start, local, inside, GROUPS)
    else:
        num_rows = numel // columns
        if columns == width * 4:
            g = _of_rows(numbers, weights, first, columns, num_rows, start, GROUPS, RANK, SCALE, ROWS, SPAN)
        else:
            g = _of_matrix(numbers, weights, first, columns, num_rows, start, local, inside, GROUPS, RANK, SCALE)
    return g


@triton.jit(do_not_specialize=["num_places", "each"])
def add_product(y, x, numbers, bias, radius, num_places, each, seen, given, own, NUM_IN: tl.constexpr,
                NUM_OUT: tl.constexpr, HAS_BIAS: tl.constexpr, HALF: tl.constexpr, ALIKE: tl.constexpr,
                PLACES: tl.constexpr, BLOCK: tl.constexpr, SPAN: tl.constexpr):  # fmt: skip
    """y += radius x z_g (rank 1), and the bias + radius z_g as its dtype holds it; g is the group of each row of y.

    Each ``each`` rows are a group's; ALIKE says that all of a program's are of one. From HALF on, where that is not 0,
    groups see the opposite directions of the first ones. Where the sides that x and y meet start in a group's numbers:
    ``seen``, ``given``; in the bias's: ``own``. A program writes SPAN columns.
    """
    places = tl.program_id(0) * PLACES + tl.arange(0, PLACES)
    there = (places < num_places)[:, None]
    if ALIKE:
        group = (tl.program_id(0) * PLACES // each).to(tl.int64)
    else:
        group = (tl.minimum(places, num_places - 1) // each)[:, None].to(tl.int64)
    if HALF:
        radius = tl.where(group < HALF, radius, -radius)
        group = tl.where(group < HALF, group, group - HALF)
    at, size = places.to(tl.int64)[:, None], NUM_IN + NUM_OUT
    across = tl.arange(0, BLOCK)[None, :]
    dot = tl.zeros([PLACES], tl.float32)
    for begin in range(0, NUM_IN, BLOCK):
        column = begin + across
        value = tl.load(x + at * NUM_IN + column, mask=there & (column < NUM_IN), other=0.0).to(tl.float32)
        side = tl.load(numbers + seen + group * size + column, mask=column < NUM_IN, other=0.0)
        dot += tl.sum(value * side, axis=1)
    dot = dot[:, None] * radius
    for begin in range(0, SPAN, BLOCK):
        column = tl.program_id(1) * SPAN + begin + across
        inside = there & (column < NUM_OUT)
        side = tl.load(numbers + given + group * size + column, mask=column < NUM_OUT, other=0.0)
        value = tl.load(y + at * NUM_OUT + column, mask=inside, other=0.0).to(tl.float32) + dot * side
        if HAS_BIAS:
            z = tl.load(numbers + own + group * NUM_OUT + column, mask=column < NUM_OUT, other=0.0)
            near = tl.load(bias + column, mask=column < NUM_OUT, other=0.0).to(tl.float32) + radius * z
            value += near.to(bias.dtype.element_ty).to(tl.float32)
        tl.store(y + at * NUM_OUT + column, value.to(y.dtype.element_ty), mask=inside)
