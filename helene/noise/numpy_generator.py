"""The generator in numpy, on the CPU: integers and normals chunk by chunk, in a workspace that stays in a cache."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from helene.noise.keys import MASK, MULTIPLIERS, ROUNDS, WEYL, blocks, check_key, counter_words

_CHUNK = 1 << 15  # blocks; the workspace stays in a core's L2 cache
_32 = np.uint64(32)
_HIGH = 1 if sys.byteorder == "little" else 0


def integers(
    seed: int, step: int, draw: int, parameter: int, start: int, count: int, rounds: int = ROUNDS
) -> np.ndarray:
    r"""The generator's words for elements [start, start + count) of a parameter, one uint32 an element.

    Args:
        seed: 64-bit run seed.
        step: Step of the run, below 2^32.
        draw: Which of the step's directions, below 2^16.
        parameter: 48-bit id, see `parameter_id`.
        start: First element, in the parameter's row-major order.
        count: Number of elements.
        rounds: Philox rounds; only tests use another number than the default.

    Returns:
        Array of shape (count,), dtype uint32.

    Raises:
        ValueError: If a part of the key does not fit its field.
    """
    check_key(seed, step, draw, parameter, start + count)
    first, last = blocks(start, count)
    out, work = np.empty((last - first, 4), np.uint32), _workspace(last - first)
    for rows, *pairs in _chunks(seed, step, draw, parameter, first, last, rounds, work):
        for column, packed in enumerate(pairs):
            halves = packed.view(np.uint32)
            out[rows, 2 * column] = halves[_HIGH::2]
            out[rows, 2 * column + 1] = halves[1 - _HIGH :: 2]
    return out.reshape(-1)[start - 4 * first :][:count]


def normal(seed: int, step: int, draw: int, parameter: int, start: int, count: int) -> np.ndarray:
    """`helene.noise.normal` as an array; the key is taken as it is."""
    first, last = blocks(start, count)
    out, work = np.empty((last - first, 4), np.float32), _workspace(last - first)
    for rows, a, b in _chunks(seed, step, draw, parameter, first, last, ROUNDS, work):
        _box_muller(a, b, out[rows], work)
    return out.reshape(-1)[start - 4 * first :][:count]


def _chunks(
    seed: int, step: int, draw: int, parameter: int, first: int, last: int, rounds: int, work: _Workspace
) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """Chunk by chunk of the blocks [first, last): their rows in the result, and the words that `_philox` packs."""
    c1, c2, c3 = np.array(counter_words(step, draw, parameter), np.uint64)[:, None]
    for lo in range(first, last, _CHUNK):
        hi = min(lo + _CHUNK, last)
        a, b = _philox(np.arange(lo, hi, dtype=np.uint64), c1, c2, c3, seed, rounds, work)
        yield slice(lo - first, hi - first), a, b


class _Workspace:
    """Scratch for one chunk, reused from chunk to chunk."""

    def __init__(self, size: int) -> None:
        self.a, self.b, self.p, self.q = (np.empty(size, np.uint64) for _ in range(4))
        self.bits = np.empty(size, np.uint32)
        self.radius, self.angle, self.wave = (np.empty(size, np.float32) for _ in range(3))


_local = threading.local()


def _workspace(num_blocks: int) -> _Workspace:
    """A workspace for chunks of that many blocks; the full-sized one is kept, since fresh pages cost as much as z."""
    if num_blocks < _CHUNK // 8:
        return _Workspace(num_blocks)
    if not hasattr(_local, "work"):
        _local.work = _Workspace(_CHUNK)
    return _local.work


@lru_cache(64)
def _keys(seed: int, rounds: int) -> list[tuple[np.uint64, np.uint64]]:
    """The key of each round, shifted to the high word."""
    low, high = seed & MASK, seed >> 32
    step0, step1 = WEYL
    return [
        (np.uint64((low + r * step0 & MASK) << 32), np.uint64((high + r * step1 & MASK) << 32)) for r in range(rounds)
    ]


def _philox(
    c0: np.ndarray,
    c1: np.ndarray,
    c2: np.ndarray,
    c3: np.ndarray,
    seed: int,
    rounds: int,
    work: _Workspace | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Words (x0, x1) and (x2, x3) of each counter, packed high and low into two uint64 arrays.

    A product of a word with a multiplier is already such a pair, so a round is two products, four shifts and four
    exclusive ors on contiguous arrays. Words that are equal for all counters are arrays of one element: broadcasting
    then makes the first two rounds nearly free.
    """
    work = work or _Workspace(c0.size)
    n = c0.size
    a, b, p, q = work.a[:n], work.b[:n], work.p[:n], work.q[:n]
    m0, m1 = (np.uint64(m) for m in MULTIPLIERS)
    keys = _keys(seed, rounds)
    head = (c2 * m1) ^ (c1 << _32) ^ keys[0][0]
    np.multiply(c0, m0, out=q)
    np.bitwise_xor(q, (c3 << _32) ^ keys[0][1], out=b)

    np.right_shift(b, _32, out=p)
    np.multiply(p, m1, out=p)
    np.bitwise_xor(p, (head << _32) ^ keys[1][0], out=a)
    np.left_shift(b, _32, out=b)
    np.bitwise_xor(b, ((head >> _32) * m0) ^ keys[1][1], out=b)

    for k0, k1 in keys[2:]:
        np.right_shift(b, _32, out=p)
        np.multiply(p, m1, out=p)
        np.right_shift(a, _32, out=q)
        np.multiply(q, m0, out=q)
        np.left_shift(a, _32, out=a)
        np.bitwise_xor(a, p, out=a)
        np.bitwise_xor(a, k0, out=a)
        np.left_shift(b, _32, out=b)
        np.bitwise_xor(b, q, out=b)
        np.bitwise_xor(b, k1, out=b)
    return a, b


def _box_muller(a: np.ndarray, b: np.ndarray, out: np.ndarray, work: _Workspace) -> None:
    """Normals from packed words into out, shape (n, 4); every float32 operation before log and cos is exact or IEEE.

    u = x0 / 2^32 + 2^-33 keeps the full resolution of small u, so tails reach |z| = 6.7; the angle is a 24-bit number,
    exact in float32, times one rounded constant; that rounded product is part of the definition of z.
    """
    n = a.size
    radius, angle, wave, bits = work.radius[:n], work.angle[:n], work.wave[:n], work.bits[:n]
    for column, packed in ((0, a), (2, b)):
        np.copyto(radius, packed.view(np.uint32)[_HIGH::2], casting="unsafe")
        np.multiply(radius, np.float32(2.0**-32), out=radius)
        np.add(radius, np.float32(2.0**-33), out=radius)
        np.log(radius, out=radius)
        np.multiply(radius, np.float32(-2.0), out=radius)
        np.sqrt(radius, out=radius)

        np.copyto(bits, packed, casting="unsafe")  # the low word
        np.right_shift(bits, np.uint32(8), out=bits)
        np.copyto(angle, bits, casting="unsafe")
        np.multiply(angle, np.float32(2.0 * math.pi / 2**24), out=angle)
        np.cos(angle, out=wave)
        np.multiply(radius, wave, out=out[:, column])
        np.sin(angle, out=wave)
        np.multiply(radius, wave, out=out[:, column + 1])
