r"""Triton functions that give z from its key: the generator and the normals of `helene.noise`.

The integers are those of `helene.noise.integers`, bit for bit. The normals use polynomials of our own (weighted minimax
fits, errors below a unit in the last place of float32), built from operations that the interpreter has too. Only sine
and cosine have a second form behind the constexpr ``FAST``, the hardware's after a reduction to half a turn, a fifth
fewer instructions a number; the logarithm has none, for the hardware's is wrong by 8e-4 near u = 1.
"""

from __future__ import annotations

import triton
import triton.language as tl

from helene.noise.keys import MULTIPLIERS, WEYL

M0, M1 = tl.constexpr(MULTIPLIERS[0]), tl.constexpr(MULTIPLIERS[1])
W0, W1 = tl.constexpr(WEYL[0]), tl.constexpr(WEYL[1])


@triton.jit
def words(c0, c1, c2, c3, k0, k1, ROUNDS: tl.constexpr):
    """Philox 4x32: four words from a counter of four and a key of two, all uint32."""
    for _ in tl.static_range(ROUNDS):
        a = c0.to(tl.uint64) * M0  # one wide product; mulhi and mul would be two instructions
        b = c2.to(tl.uint64) * M1
        c0, c2 = (b >> 32).to(tl.uint32) ^ c1 ^ k0, (a >> 32).to(tl.uint32) ^ c3 ^ k1
        c1, c3 = b.to(tl.uint32), a.to(tl.uint32)
        k0 = (k0 + W0).to(tl.uint32)
        k1 = (k1 + W1).to(tl.uint32)
    return c0, c1, c2, c3


@triton.jit
def radius(word):
    """sqrt(−2 ln u), u = word / 2^32 + 2^-33."""
    u = tl.fma(word.to(tl.float32), 2.3283064365386963e-10, 1.1641532182693481e-10)
    bits = u.to(tl.int32, bitcast=True)
    exponent = (bits - 0x3F2AAAAB) >> 23
    f = (bits - (exponent << 23)).to(tl.float32, bitcast=True) - 1.0  # u = 2^exponent (1 + f), 2/3 <= 1 + f < 4/3
    p = tl.fma(f, -0.27640271186828613, 0.30244380235671997)  # coefficients of −2 ln(1 + f)
    p = tl.fma(f, p, -0.2808465659618378)
    p = tl.fma(f, p, 0.3294464945793152)
    p = tl.fma(f, p, -0.4001583755016327)
    p = tl.fma(f, p, 0.5000847578048706)
    p = tl.fma(f, p, -0.6666653156280518)
    p = tl.fma(f, p, 1.0)
    p = tl.fma(f, p, -2.0) * f
    return tl.sqrt(tl.fma(exponent.to(tl.float32), -1.3862943649291992, p))


@triton.jit
def wave(word, FAST: tl.constexpr):
    """Cosine and sine of 2π (word >> 8) / 2^24, and the sign bit that both lack."""
    angle = (word >> 8).to(tl.float32) * 3.7450703871400037e-07
    if FAST:
        shifted = tl.fma(angle, 0.31830987334251404, 12582912.0)  # the nearest half turn, in the low bits
        turns = shifted - 12582912.0
        y = tl.fma(turns, -3.140625, angle)  # exact: the constant has 9 bits
        y = tl.fma(turns, -0.0009676535846665502, y)  # |y| <= π / 2, where the hardware errs by less than beyond
        cos = tl.inline_asm_elementwise("cos.approx.ftz.f32 $0, $1;", "=f,f", [y], tl.float32, True, 1)
        sin = tl.inline_asm_elementwise("sin.approx.ftz.f32 $0, $1;", "=f,f", [y], tl.float32, True, 1)
        flip = shifted.to(tl.int32, bitcast=True) << 31  # an odd half turn turns both signs
    else:
        shifted = tl.fma(angle, 0.6366197466850281, 12582912.0)  # the nearest quarter turn
        quarter = shifted.to(tl.int32, bitcast=True)
        turns = shifted - 12582912.0
        y = tl.fma(turns, -1.5703125, angle)
        y = tl.fma(turns, -0.0004838267923332751, y)
        q = y * y
        s = tl.fma(q, -0.00019517297914717346, 0.008332177996635437)
        s = tl.fma(q, s, -0.16666655242443085)
        s = tl.fma(y * q, s, y)
        c = tl.fma(q, 2.443845005473122e-05, -0.001388736767694354)
        c = tl.fma(q, c, 0.04166664555668831)
        c = tl.fma(q, c, -0.5)
        c = tl.fma(q, c, 1.0)
        odd = (quarter & 1) == 1
        cos = tl.where(odd, -s, c)
        sin = tl.where(odd, c, s)
        flip = (quarter & 2) << 30
    return cos, sin, flip


@triton.jit
def pair(first, second, FAST: tl.constexpr):
    """Two normals from two words."""
    cos, sin, flip = wave(second, FAST)
    r = (radius(first).to(tl.int32, bitcast=True) ^ flip).to(tl.float32, bitcast=True)
    return r * cos, r * sin


@triton.jit
def normals(block, c1, c2, c3, k0, k1, ROUNDS: tl.constexpr, FAST: tl.constexpr):
    """Four normals a block, shape (blocks, 4): element 4 b + i of z at [b, i]; no data moves between threads."""
    x0, x1, x2, x3 = words(block, c1, c2, c3, k0, k1, ROUNDS)
    z0, z1 = pair(x0, x1, FAST)
    z2, z3 = pair(x2, x3, FAST)
    return tl.reshape(tl.join(tl.join(z0, z2), tl.join(z1, z3)), [block.shape[0], 4])


@triton.jit
def directions(block, c1, c2, c3, k0, k1, ROUNDS: tl.constexpr, FAST: tl.constexpr, SIGNS: tl.constexpr):
    """Four elements a block of a direction, shape (blocks, 4): `normals`, or ±1 as `helene.noise.signs` has them."""
    if SIGNS:
        x0, x1, x2, x3 = words(block, c1, c2, c3, k0, k1, ROUNDS)
        x = tl.reshape(tl.join(tl.join(x0, x2), tl.join(x1, x3)), [block.shape[0], 4])
        return tl.where(x.to(tl.int32, bitcast=True) < 0, -1.0, 1.0)
    else:
        return normals(block, c1, c2, c3, k0, k1, ROUNDS, FAST)
