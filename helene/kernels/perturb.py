r"""Triton kernels that draw: z alone, perturbed copies of many parameters, perturbed rows of a table.

Everything that changes from step to step is in device memory, so that a captured graph can be replayed: ``control``
(int64: seed, step, draw) and ``values`` (float32: eps, ...). Arithmetic is that of
`helene.evaluation.directions.write_perturbed`: one fused multiply-add in float32, one rounding.
"""

from __future__ import annotations

import triton
import triton.language as tl

from helene.kernels.philox import directions, normals, words

NUM_WARPS = 4


@triton.jit
def key_of(control):
    """Key words and the counter's step and draw words, uint32."""
    seed = tl.load(control)
    return (
        seed.to(tl.uint32),
        (seed >> 32).to(tl.uint32),
        tl.load(control + 1).to(tl.uint32),
        (tl.load(control + 2) << 16).to(tl.uint32),
    )


@triton.jit
def fill(out, control, num_blocks, RAW: tl.constexpr, ROUNDS: tl.constexpr, FAST: tl.constexpr,
         BLOCKS: tl.constexpr):  # fmt: skip
    """z of one parameter; RAW gives the words instead. After the draw, control holds the id and the first block."""
    k0, k1, step, draw = key_of(control)
    c1, c3 = tl.load(control + 3).to(tl.uint32), draw | tl.load(control + 4).to(tl.uint32)
    local = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    block = (local + tl.load(control + 5)).to(tl.uint32)
    at = out + local[:, None] * 4 + tl.arange(0, 4)[None, :]
    inside = (local < num_blocks)[:, None]
    if RAW:
        x0, x1, x2, x3 = words(block, c1, step, c3, k0, k1, ROUNDS)
        x = tl.reshape(tl.join(tl.join(x0, x2), tl.join(x1, x3)), [BLOCKS, 4])
        tl.store(at, x.to(tl.int32, bitcast=True), mask=inside)
    else:
        tl.store(at, normals(block, c1, step, c3, k0, k1, ROUNDS, FAST), mask=inside)


@triton.jit
def inside_of(local, valid, QUADS: tl.constexpr):
    """Which elements of a tile exist, shape (rows, 4). QUADS says that rows are whole, which keeps accesses wide."""
    if QUADS:
        return tl.broadcast_to((local * 4 < valid)[:, None], [local.shape[0], 4])
    else:
        return (local[:, None] * 4 + tl.arange(0, 4)[None, :]) < valid


@triton.jit
def perturb(theta, plus, minus, rows, owners, control, values, WIDTH: tl.constexpr, PLUS: tl.constexpr,
            MINUS: tl.constexpr, ALIGNED: tl.constexpr, QUADS: tl.constexpr, TILE: tl.constexpr, ROUNDS: tl.constexpr,
            FAST: tl.constexpr, SIGNS: tl.constexpr):  # fmt: skip
    """plus ← theta + eps z, minus ← theta − eps z for the parameters of a table; one read, one draw."""
    tile = tl.program_id(0)
    row = rows + tl.load(owners + tile).to(tl.int64) * WIDTH
    source, sink = tl.load(row), tl.load(row + 1)
    if ALIGNED:
        source, sink = tl.multiple_of(source, 8), tl.multiple_of(sink, 8)
    index = tile - tl.load(row + 2)
    start = index * TILE
    local = tl.arange(0, TILE // 4)
    inside = inside_of(local, tl.load(row + 3) - start, QUADS)
    offsets = local[:, None] * 4 + tl.arange(0, 4)[None, :]
    value = tl.load(theta + source + start + offsets, mask=inside).to(tl.float32)  # first, to be in flight meanwhile
    k0, k1, step, draw = key_of(control)
    eps = tl.load(values)
    block = (index * (TILE // 4)).to(tl.uint32) + local.to(tl.uint32)
    c1, c3 = tl.load(row + 4).to(tl.uint32), draw | tl.load(row + 5).to(tl.uint32)
    z = directions(block, c1, step, c3, k0, k1, ROUNDS, FAST, SIGNS)
    if PLUS:
        tl.store(plus + sink + start + offsets, tl.fma(z, eps, value).to(plus.dtype.element_ty), mask=inside)
    if MINUS:
        tl.store(minus + sink + start + offsets, tl.fma(z, -eps, value).to(minus.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["num_rows"])
def gather(theta, ids, out, rows, control, values, num_rows, SIGN: tl.constexpr, QUADS: tl.constexpr,
           BLOCKS: tl.constexpr, ROUNDS: tl.constexpr, FAST: tl.constexpr, SIGNS: tl.constexpr):  # fmt: skip
    """Rows ``ids`` of a matrix with 4 * QUADS columns, perturbed. A row that does not exist becomes nan."""
    k0, k1, step, draw = key_of(control)
    eps = tl.load(values) * SIGN
    c1, c3 = tl.load(rows + 4).to(tl.uint32), draw | tl.load(rows + 5).to(tl.uint32)
    token = tl.program_id(0).to(tl.int64)
    wanted = tl.load(ids + token).to(tl.int64)
    exists = (wanted >= 0) & (wanted < num_rows)
    local = tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS)
    inside = (local < QUADS)[:, None]
    block = (wanted * QUADS).to(tl.uint32) + local.to(tl.uint32)
    z = directions(block, c1, step, c3, k0, k1, ROUNDS, FAST, SIGNS)
    offsets = local[:, None] * 4 + tl.arange(0, 4)[None, :]
    value = tl.load(theta + wanted * (QUADS * 4) + offsets, mask=inside & exists, other=float("nan")).to(tl.float32)
    tl.store(out + token * (QUADS * 4) + offsets, tl.fma(z, eps, value).to(out.dtype.element_ty), mask=inside)
