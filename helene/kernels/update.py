r"""The fused update in Triton: z regenerated or g read, theta and state read and written once.

The methods mirror `helene.rules` operation by operation; the launch turns contraction into fused multiply-adds off, so
that equal g give equal bits but for the GPU's division and root, which are good to two units in the last place (their
exact forms take half of the registers). State is stored as `helene.rules.storage` does: float32, bfloat16 or 8 bits
with a scale for each `helene.rules.precision.BLOCK` elements, the narrow ones rounded stochastically with words from
the same generator.
"""

from __future__ import annotations

import triton
import triton.language as tl

from helene.kernels import codes
from helene.kernels.low_rank import low_rank
from helene.kernels.perturb import inside_of, key_of
from helene.kernels.philox import directions, words
from helene.rules import precision

_FLOAT32, _BFLOAT16 = tl.constexpr(codes.FLOAT32), tl.constexpr(codes.BFLOAT16)
_SIGNED, _UNSIGNED = tl.constexpr(codes.SIGNED), tl.constexpr(codes.UNSIGNED)
_SGD, _SGD_PLAIN = tl.constexpr(codes.SGD), tl.constexpr(codes.SGD_PLAIN)  # the second without weight decay
_HELENE, _MOMENTUM = tl.constexpr(codes.HELENE), tl.constexpr(codes.MOMENTUM)
_TORCH_SGD, _DECAY_LAST = tl.constexpr(codes.TORCH_SGD), tl.constexpr(codes.DECAY_LAST)
_SIGN, _ADAM, _LION = tl.constexpr(codes.SIGN), tl.constexpr(codes.ADAM), tl.constexpr(codes.LION)
_LEAST_SCALE = tl.constexpr(precision.LEAST_SCALE)
_SIGNED_TOP, _UNSIGNED_TOP = tl.constexpr(precision.top_of(False)), tl.constexpr(precision.top_of(True))
_ROWS = tl.constexpr(64)  # rows of four that share a scale: helene.rules.precision.BLOCK / 4


@triton.jit
def _four_words(block, c1, c3, step, k0, k1, ROUNDS: tl.constexpr):
    x0, x1, x2, x3 = words(block, c1, step, c3, k0, k1, ROUNDS)
    return tl.reshape(tl.join(tl.join(x0, x2), tl.join(x1, x3)), [block.shape[0], 4])


@triton.jit
def _round_bfloat16(x, random):
    """`helene.rules.precision.round_stochastically`; the result is exact in bfloat16."""
    bits = x.to(tl.int32, bitcast=True) + (random >> 16).to(tl.int32)
    return (bits & -65536).to(tl.float32, bitcast=True)


@triton.jit
def _round_float16(x, random):
    bits = x.to(tl.int32, bitcast=True) + (random >> 19).to(tl.int32)
    normal = (bits & -8192).to(tl.float32, bitcast=True)
    grid = tl.abs(x) * 16777216.0
    low = tl.floor(grid)
    uniform = (random >> 8).to(tl.float32) * 5.960464477539063e-08
    small = (low + tl.where(uniform < grid - low, 1.0, 0.0)) * 5.960464477539063e-08
    small = tl.where(x.to(tl.int32, bitcast=True) < 0, -small, small)
    return tl.where(tl.abs(x) < 6.103515625e-05, small, normal)


@triton.jit
def _top(KIND: tl.constexpr):
    """`helene.rules.precision.top_of`."""
    return _UNSIGNED_TOP if KIND == _UNSIGNED else _SIGNED_TOP


@triton.jit
def _encode(x, random, inside, KIND: tl.constexpr):
    """`helene.rules.precision.encode`: codes as float32, and each row's scale, shape (rows, 1)."""
    size: tl.constexpr = x.shape[0]
    magnitude = tl.where(inside, tl.abs(x), 0.0)
    blocks = tl.reshape(tl.max(magnitude, axis=1), [size // _ROWS, _ROWS])
    scales = tl.maximum(tl.max(blocks, axis=1)[:, None], _LEAST_SCALE)
    scale = tl.reshape(tl.broadcast_to(scales, [size // _ROWS, _ROWS]), [size])[:, None]
    inverses = tl.div_rn(tl.full(scales.shape, _top(KIND), tl.float32), scales)
    inverse = tl.reshape(tl.broadcast_to(inverses, [size // _ROWS, _ROWS]), [size])[:, None]
    units = tl.minimum(magnitude * inverse, _top(KIND))
    root = tl.sqrt(units)  # which neighbours x lies between: an error of a few ulp moves no mean
    low = tl.floor(tl.sqrt(root)) if KIND == _UNSIGNED else tl.floor(root)
    here, gap = low * low, low + low + 1.0
    if KIND == _UNSIGNED:
        gap *= 2.0 * (here + low) + 1.0
        here *= here
    uniform = (random >> 8).to(tl.float32) * 5.960464477539063e-08
    code = low + tl.where(uniform * gap < units - here, 1.0, 0.0)
    if KIND == _UNSIGNED:
        code = tl.where((x > 0) & (code < 1.0), 1.0, code)
    else:
        code = tl.where(x.to(tl.int32, bitcast=True) < 0, -code, code)
    return code, scale


@triton.jit
def _load_state(base, scales, row, column, start, offsets, local, inside, valid, KIND: tl.constexpr,
                ALIGNED: tl.constexpr):  # fmt: skip
    at = tl.load(row + column)
    if ALIGNED:
        at = tl.multiple_of(at, 16)
    stored = tl.load(base + at + start + offsets, mask=inside, other=0)
    if KIND == _SIGNED or KIND == _UNSIGNED:
        where = tl.load(row + column + 1) + start // (_ROWS * 4) + local // _ROWS
        scale = tl.load(scales + where, mask=local * 4 < valid, other=0.0)[:, None]
        code, unit = stored.to(tl.float32), scale * (1.0 / _top(KIND))
        if KIND == _UNSIGNED:
            return (code * code) * (code * code) * unit
        else:
            return code * tl.abs(code) * unit
    else:
        return stored.to(tl.float32)


@triton.jit
def _store_state(base, scales, row, column, start, offsets, local, inside, valid, x, random, KIND: tl.constexpr,
                 ALIGNED: tl.constexpr):  # fmt: skip
    at = tl.load(row + column)
    if ALIGNED:
        at = tl.multiple_of(at, 16)
    pointers = base + at + start + offsets
    if KIND == _FLOAT32:
        tl.store(pointers, x, mask=inside)
    elif KIND == _BFLOAT16:
        tl.store(pointers, _round_bfloat16(x, random).to(tl.bfloat16), mask=inside)
    else:
        code, scale = _encode(x, random, inside, KIND)
        tl.store(pointers, code.to(base.dtype.element_ty), mask=inside)
        where = tl.load(row + column + 1) + start // (_ROWS * 4) + local // _ROWS
        tl.store(scales + where[:, None], scale, mask=((local % _ROWS == 0) & (local * 4 < valid))[:, None])


@triton.jit
def _store_second(base, scales, row, start, offsets, local, inside, valid, x, block, c1, c3, step, k0, k1,
                  KIND: tl.constexpr, ALIGNED: tl.constexpr, ROUNDS: tl.constexpr,
                  STATE_DRAW: tl.constexpr):  # fmt: skip
    if KIND == _FLOAT32:
        random = block
    else:
        random = _four_words(block, c1, c3 | ((STATE_DRAW + 1) << 16), step, k0, k1, ROUNDS)
    _store_state(base, scales, row, 9, start, offsets, local, inside, valid, x, random, KIND, ALIGNED)


@triton.jit
def _sign(x):
    return tl.where(x > 0, 1.0, tl.where(x < 0, -1.0, 0.0))


@triton.jit
def _move(theta, g, m, h, hyper, METHOD: tl.constexpr):
    """New theta, m and h, as `helene.functional` has them. Columns are those of `helene.steps.fused.methods`."""
    lr, decay = tl.load(hyper), tl.load(hyper + 1)
    if METHOD == _SGD_PLAIN:
        theta = theta - lr * g
    elif METHOD == _SGD:
        theta = theta - lr * (g + decay * theta)
    elif METHOD == _DECAY_LAST:
        theta = theta - lr * g
        theta = theta - decay * theta
    elif METHOD == _HELENE:
        beta1, alpha, gamma = tl.load(hyper + 2), tl.load(hyper + 3), tl.load(hyper + 4)
        floor, denominator_eps, correction = tl.load(hyper + 5), tl.load(hyper + 6), tl.load(hyper + 7)
        m = beta1 * m + alpha * g
        theta = theta - decay * theta
        bottom = gamma * tl.maximum(h * correction, floor) + denominator_eps
        theta = theta - lr * (m / bottom)
    elif METHOD == _MOMENTUM:
        m = tl.load(hyper + 2) * m + g
        theta = (theta - decay * theta) - lr * m
    elif METHOD == _TORCH_SGD:
        m = tl.load(hyper + 2) * m + (g + decay * theta)
        theta = theta - lr * m
    elif METHOD == _SIGN:
        theta = (theta - decay * theta) - lr * _sign(g)
    elif METHOD == _ADAM:
        beta1, rest1, beta2, rest2 = tl.load(hyper + 2), tl.load(hyper + 3), tl.load(hyper + 4), tl.load(hyper + 5)
        correction, denominator_eps, coupled = tl.load(hyper + 6), tl.load(hyper + 7), tl.load(hyper + 8)
        g = g + coupled * theta
        theta = theta - decay * theta
        m = beta1 * m + rest1 * g
        h = beta2 * h + rest2 * (g * g)
        theta = theta - lr * (m / (tl.sqrt(h) * correction + denominator_eps))
    elif METHOD == _LION:
        beta1, rest1, beta2, rest2 = tl.load(hyper + 2), tl.load(hyper + 3), tl.load(hyper + 4), tl.load(hyper + 5)
        direction = _sign(beta1 * m + rest1 * g)
        theta = (theta - decay * theta) - lr * direction
        m = beta2 * m + rest2 * g
    return theta, m, h


@triton.jit
def update(theta, s0, s0_scales, s1, s1_scales, rows, owners, control, values, hypers, numbers, weights,
           DIRECTIONS: tl.constexpr, RANK: tl.constexpr, SCALE: tl.constexpr, WIDTH: tl.constexpr,
           HYPERS: tl.constexpr, METHOD: tl.constexpr, KIND0: tl.constexpr, KIND1: tl.constexpr,
           STOCHASTIC: tl.constexpr, ALIGNED: tl.constexpr, QUADS: tl.constexpr, TILE: tl.constexpr,
           SPAN: tl.constexpr, ROUNDS: tl.constexpr, FAST: tl.constexpr, SIGNS: tl.constexpr,
           ROUNDING_DRAW: tl.constexpr, STATE_DRAW: tl.constexpr):  # fmt: skip
    """Move every parameter of a table along g; nothing moves where ``values[2]`` is 0.

    g = c z, c in ``values[1]``; of several directions the sum with their ``weights``, with RANK that of `low_rank`. Of
    none it lies in memory, where rows say as a distance from theta.
    """
    tile = tl.program_id(0)
    row = rows + tl.load(owners + tile).to(tl.int64) * WIDTH
    source = tl.load(row)
    if ALIGNED:
        source = tl.multiple_of(source, 8)
    index = tile - tl.load(row + 2)
    start = index * TILE
    local = tl.arange(0, TILE // 4)
    if RANK:  # tiles are several rows of some columns
        width = tl.load(row + 12)
        along = width // SPAN
        start = (index // along * (TILE // 4 // SPAN * width) + index % along * SPAN) * 4
        local = local // SPAN * width.to(tl.int32) + local % SPAN
    valid = tl.where(tl.load(values + 2) != 0.0, tl.load(row + 3) - start, 0)
    offsets = local[:, None] * 4 + tl.arange(0, 4)[None, :]
    block = (start // 4).to(tl.uint32) + local.to(tl.uint32)
    theta += source + start
    inside = inside_of(local, valid, QUADS)
    old = tl.load(theta + offsets, mask=inside, other=0.0).to(tl.float32)
    m, h = 0.0, 0.0
    if KIND0:
        m = _load_state(s0, s0_scales, row, 7, start, offsets, local, inside, valid, KIND0, ALIGNED)
    if KIND1:
        h = _load_state(s1, s1_scales, row, 9, start, offsets, local, inside, valid, KIND1, ALIGNED)

    k0, k1, step, draw = key_of(control)
    c1, c3 = tl.load(row + 4).to(tl.uint32), tl.load(row + 5).to(tl.uint32)
    if RANK:
        first, columns, numel = tl.load(row + 1), tl.load(row + 11), tl.load(row + 3)
        g = low_rank(numbers, weights, first, columns, width, numel, start, local, inside, DIRECTIONS, RANK, SCALE,
                     TILE // 4 // SPAN, SPAN)  # fmt: skip
    elif DIRECTIONS == 0:
        away = tl.load(row + 1)
        if ALIGNED:
            away = tl.multiple_of(away, 8)
        g = tl.load(theta + away + offsets, mask=inside, other=0.0).to(tl.float32)
    elif DIRECTIONS == 1:
        g = directions(block, c1, step, draw | c3, k0, k1, ROUNDS, FAST, SIGNS) * tl.load(values + 1)
    else:
        g = directions(block, c1, step, draw | c3, k0, k1, ROUNDS, FAST, SIGNS) * tl.load(weights)
        for i in range(1, DIRECTIONS):
            word = (draw + i * 65536) | c3
            g += directions(block, c1, step, word, k0, k1, ROUNDS, FAST, SIGNS) * tl.load(weights + i)
    hyper = hypers + tl.load(row + 6) * HYPERS
    if METHOD == _HELENE and KIND1:
        if tl.load(hyper + 8) != 0.0:
            h = tl.load(hyper + 9) * h + tl.load(hyper + 10) * (tl.load(hyper + 11) * g * g)
    new, m, h = _move(old, g, m, h, hyper, METHOD)
    new = tl.where(new == old, old, new)  # keeps the sign of zeros that do not move

    if STOCHASTIC:
        random = _four_words(block, c1, c3 | (ROUNDING_DRAW << 16), step, k0, k1, ROUNDS)
        if theta.dtype.element_ty == tl.float16:
            new = _round_float16(new, random)
        else:
            new = _round_bfloat16(new, random)
    stored = new.to(theta.dtype.element_ty)
    tl.store(theta + offsets, stored, mask=inside)
    if KIND0:
        if KIND0 == _FLOAT32:
            random = block
        else:
            random = _four_words(block, c1, c3 | (STATE_DRAW << 16), step, k0, k1, ROUNDS)
        _store_state(s0, s0_scales, row, 7, start, offsets, local, inside, valid, m, random, KIND0, ALIGNED)
    if KIND1:
        if METHOD == _HELENE:
            if tl.load(hyper + 8) != 0.0:  # h changed
                _store_second(s1, s1_scales, row, start, offsets, local, inside, valid, h, block, c1, c3, step, k0, k1,
                              KIND1, ALIGNED, ROUNDS, STATE_DRAW)  # fmt: skip
        else:
            _store_second(s1, s1_scales, row, start, offsets, local, inside, valid, h, block, c1, c3, step, k0, k1,
                          KIND1, ALIGNED, ROUNDS, STATE_DRAW)  # fmt: skip
