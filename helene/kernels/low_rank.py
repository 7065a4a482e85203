r"""Elements of Σ_g a_g z_g in Triton, from the few numbers that make each z_g (`helene.evaluation.factors`)."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def low_rank(numbers, weights, first, columns, numel, start, offsets, inside, GROUPS: tl.constexpr, RANK: tl.constexpr,
             SCALE: tl.constexpr):  # fmt: skip
    """Elements ``start`` + ``offsets`` of one parameter's Σ_g a_g z_g, float32, added in the order of g, then of k.

    Group g's numbers for it start at ``first`` + g s: u_1, ..., u_RANK, then v_1, ... of a matrix, s = RANK (m + n),
    and z itself of a vector, which has 0 columns.
    """
    g = tl.zeros(offsets.shape, tl.float32)
    numbers += first
    if columns == 0:
        for group in range(GROUPS):
            z = tl.load(numbers + group * numel + start + offsets, mask=inside, other=0.0)
            g = tl.fma(tl.load(weights + group), z, g)
    else:
        num_rows, first_row = numel // columns, start // columns
        place = (start - first_row * columns).to(tl.int32) + offsets  # counted from the first row's start
        row = place // columns.to(tl.int32)
        column = place - row * columns.to(tl.int32)
        for group in range(GROUPS):
            weight = tl.load(weights + group) * SCALE
            for term in range(RANK):
                u = tl.load(numbers + term * num_rows + first_row + row, mask=inside, other=0.0)
                v = tl.load(numbers + RANK * num_rows + term * columns + column, mask=inside, other=0.0)
                g = tl.fma(weight * u, v, g)
            numbers += RANK * (num_rows + columns)
    return g
