r"""Directions of low rank in Triton, from the few numbers that make them (`helene.evaluation.factors`).

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
def _of_matrix(numbers, weights, first, columns, num_rows, start, local, inside, GROUPS: tl.constexpr,
               RANK: tl.constexpr, SCALE: tl.constexpr, FOURS: tl.constexpr):  # fmt: skip
    """FOURS says that sides are whole numbers of four, so that four elements share a row and are read at once."""
    g = tl.zeros([local.shape[0], 4], tl.float32)
    four, first_row, width = tl.arange(0, 4)[None, :], start // columns, columns.to(tl.int32)
    place = local[:, None] * 4 if FOURS else local[:, None] * 4 + four
    place += (start - first_row * columns).to(tl.int32)  # counted from the first row's start
    row = place // width
    column = place - row * width
    if FOURS:
        column = tl.multiple_of(column, [1, 4]) + four
    there = first_row + row < num_rows
    for group in tl.range(GROUPS, loop_unroll_factor=4):
        weight = tl.load(weights + group) * SCALE
        for term in range(RANK):
            left = first + group * (RANK * (num_rows + columns)) + term * num_rows
            right = first + group * (RANK * (num_rows + columns)) + RANK * num_rows + term * columns
            if FOURS:
                right = tl.multiple_of(right, 4)
            u = tl.load(numbers + left + first_row + row, mask=there, other=0.0)
            at = tl.multiple_of(right + column, [1, 4]) if FOURS else right + column
            v = tl.load(numbers + at, mask=inside, other=0.0)
            g = tl.fma(tl.broadcast_to(weight * u, v.shape), v, g)
    return g


@triton.jit
def low_rank(numbers, weights, first, columns, numel, start, local, inside, GROUPS: tl.constexpr, RANK: tl.constexpr,
             SCALE: tl.constexpr):  # fmt: skip
    """Elements of a tile of Σ_g a_g z_g, float32, shape (rows of four, 4), added in the order of g, then of k.

    The tile is that of ``start`` + 4 ``local`` and the three that follow each.
    """
    if columns == 0:
        g = _of_vector(numbers, weights, first, numel, start, local, inside, GROUPS)
    else:
        num_rows = numel // columns
        if (columns % 4 == 0) & (num_rows % 4 == 0):
            g = _of_matrix(numbers, weights, first, columns, num_rows, start, local, inside, GROUPS, RANK, SCALE, True)
        else:
            g = _of_matrix(numbers, weights, first, columns, num_rows, start, local, inside, GROUPS, RANK, SCALE, False)
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
