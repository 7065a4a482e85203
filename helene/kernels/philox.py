r"""Triton functions that give z from its key: the generator and the normals of `helene.noise`.

The integers are those of `helene.noise.integers`, bit for bit. The normals use polynomials of our own (weighted minimax
fits; their error is far below a unit in the last place of float32), built from operations that the interpreter has too,
so that one text runs everywhere. Only the sine and cosine have a second form, the hardware's, behind the constexpr
``FAST``; the logarithm has none, for the hardware's is wrong by 8e-4 near u = 1.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def words(c0, c1, c2, c3, k0, k1, ROUNDS: tl.constexpr):
    """Philox 4x32: four words from a counter of four and a key of two, all uint32."""
    for _ in tl.static_range(ROUNDS):
        a = c0.to(tl.uint64) * 0xD2511F53  # one wide product; mulhi and mul would be two instructions
        b = c2.to(tl.uint64) * 0xCD9E8D57
        c0, c2 = (b >> 32).to(tl.uint32) ^ c1 ^ k0, (a >> 32).to(tl.uint32) ^ c3 ^ k1
        c1, c3 = b.to(tl.uint32), a.to(tl.uint32)
        k0 = (k0 + 0x9E3779B9).to(tl.uint32)
        k1 = (k1 + 0xBB67AE85).to(tl.uint32)
    return c0, c1, c2, c3


@triton.jit
def radius(word):
    """sqrt(−2 ln u), u = word / 2^32 + 2^-33."""
    u = tl.fma(word.to(tl.float32), 2.3283064365386963e-10, 1.1641532182693481e-10)
    bits = u.to(tl.int32, bitcast=True)
    exponent = (bits - 0x3F2AAAAB) >> 23
    f = (bits - (exponent << 23)).to(tl.float32, bitcast=True) - 1.0  # u = 2^exponent (1 + f), 2/3 <= 1 + f < 4/3
    p = tl.fma(f, 0.25783202052116394, -0.27968934178352356)  # coefficients of −2 ln(1 + f)
    p = tl.fma(f, p, 0.24368555843830109)
    p = tl.fma(f, p, -0.28011724352836609)
    p = tl.fma(f, p, 0.33360973000526428)
    p = tl.fma(f, p, -0.40020811557769775)
    p = tl.fma(f, p, 0.49999594688415527)
    p = tl.fma(f, p, -0.66666430234909058)
    p = tl.fma(f, p, 1.0)
    p = tl.fma(f, p, -2.0) * f
    return tl.sqrt(tl.fma(exponent.to(tl.float32), -1.3862943649291992, p))


@triton.jit
def wave(word, FAST: tl.constexpr):
    """Cosine and sine of 2π (word >> 8) / 2^24."""
    angle = (word >> 8).to(tl.float32) * 3.7450703871400037e-07
    if FAST:
        cos = tl.inline_asm_elementwise("cos.approx.ftz.f32 $0, $1;", "=f,f", [angle], tl.float32, True, 1)
        sin = tl.inline_asm_elementwise("sin.approx.ftz.f32 $0, $1;", "=f,f", [angle], tl.float32, True, 1)
    else:
        shifted = tl.fma(angle, 0.6366197466850281, 12582912.0)  # the nearest quarter turn, in the low bits
        quarter = shifted.to(tl.int32, bitcast=True)
        turns = shifted - 12582912.0
        y = tl.fma(turns, -1.5703125, angle)  # exact: the constant has 8 bits
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
        cos = tl.where(odd, s, c).to(tl.int32, bitcast=True) ^ (((quarter + 1) & 2) << 30)
        sin = tl.where(odd, c, s).to(tl.int32, bitcast=True) ^ ((quarter & 2) << 30)
        cos = cos.to(tl.float32, bitcast=True)
        sin = sin.to(tl.float32, bitcast=True)
    return cos, sin


@triton.jit
def normals(block, c1, c2, c3, k0, k1, ROUNDS: tl.constexpr, FAST: tl.constexpr):
    """Four normals a block, shape (blocks, 4): element 4 b + i of z at [b, i]; no data moves between threads."""
    x0, x1, x2, x3 = words(block, c1, c2, c3, k0, k1, ROUNDS)
    r0, r1 = radius(x0), radius(x2)
    cos0, sin0 = wave(x1, FAST)
    cos1, sin1 = wave(x3, FAST)
    return tl.reshape(tl.join(tl.join(r0 * cos0, r1 * cos1), tl.join(r0 * sin0, r1 * sin1)), [block.shape[0], 4])
