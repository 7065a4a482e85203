r"""Directions: z is a function of a key alone, so it is never stored and never depends on a device's generator.

The key is (seed, step, draw, parameter id, element index). A counter-based generator, Philox 4x32 with 7 rounds (Salmon
et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"; the fewest rounds that pass their test batteries, and ours),
maps it to 32-bit integers and Box-Muller maps these to normals. The same key gives the same integers, bit for bit, on
every device, dtype, chunking and shard; normals agree to ``|dz| <= 8 · 2^-24 · max(1, |z|)`` with accurate functions.
torch's global generator is never touched.

Layout of the 128-bit counter, most significant word last: element // 4, low 32 bits of the parameter id, step, and
draw · 2^16 + high 16 bits of the parameter id; the 64-bit key is the seed. Of a block's four words (x0, x1, x2, x3),
the pairs (x0, x1) and (x2, x3) give elements 4b, 4b + 1 and 4b + 2, 4b + 3.
"""

from __future__ import annotations

import hashlib
import math
import sys
import threading
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from helene import kernels

NOISE_VERSION = "philox4x32-7/box-muller/1"
ROUNDS = 7
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57  # of Philox, and what its key grows by each round
WEYL = 0x9E3779B9, 0xBB67AE85
CURVATURE_DRAW = 1 << 15  # draws from here on belong to the curvature's own minibatch
LABEL_DRAW = (1 << 16) - 2
ROUNDING_DRAW = (1 << 16) - 3  # stochastic rounding of the weights
STATE_DRAW = (1 << 16) - 64  # from here on, of the state tensors, in the order in which a method names them
MAX_ELEMENTS = 1 << 34

_CHUNK = 1 << 15  # blocks; the workspace stays in a core's L2 cache
_32 = np.uint64(32)
_HIGH = 1 if sys.byteorder == "little" else 0


def parameter_id(name: str | int) -> int:
    r"""48-bit id of a parameter: a hash of its name, or of its position where it has no name."""
    text = f"name:{name}" if isinstance(name, str) else f"position:{name}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest(), "little")


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
    first, last = start // 4, -(-(start + count) // 4)
    out = np.empty((last - first, 4), np.uint32)
    work, key = _workspace(last - first), _words(step, draw, parameter)
    for lo in range(first, last, _CHUNK):
        hi = min(lo + _CHUNK, last)
        for column, packed in enumerate(_philox(np.arange(lo, hi, dtype=np.uint64), *key, seed, rounds, work)):
            halves = packed.view(np.uint32)
            out[lo - first : hi - first, 2 * column] = halves[_HIGH::2]
            out[lo - first : hi - first, 2 * column + 1] = halves[1 - _HIGH :: 2]
    return out.reshape(-1)[start - 4 * first :][:count]


def normal(
    seed: int, step: int, draw: int, parameter: int, start: int, count: int, device: torch.device | str = "cpu"
) -> Tensor:
    r"""Elements [start, start + count) of the direction z of one parameter.

    Args:
        seed: 64-bit run seed.
        step: Step of the run, below 2^32.
        draw: Which of the step's directions, below 2^16.
        parameter: 48-bit id, see `parameter_id`.
        start: First element, in the parameter's row-major order.
        count: Number of elements.
        device: Where the result is wanted.

    Returns:
        Tensor of shape (count,), float32, standard normal.

    Raises:
        ValueError: If a part of the key does not fit its field.
    """
    check_key(seed, step, draw, parameter, start + count)
    if torch.device(device).type != "cpu":
        return kernels.normal(seed, step, draw, parameter, start, count, torch.device(device))
    first, last = start // 4, -(-(start + count) // 4)
    out = np.empty((last - first, 4), np.float32)
    work = _workspace(last - first)
    key = _words(step, draw, parameter)
    for lo in range(first, last, _CHUNK):
        hi = min(lo + _CHUNK, last)
        a, b = _philox(np.arange(lo, hi, dtype=np.uint64), *key, seed, ROUNDS, work)
        _box_muller(a, b, out[lo - first : hi - first], work)
    return torch.from_numpy(out.reshape(-1)[start - 4 * first :][:count])


def signs(
    seed: int, step: int, draw: int, parameter: int, start: int, count: int, device: torch.device | str = "cpu"
) -> Tensor:
    r"""Elements of a Rademacher direction: +1 where the top bit of the generator's word is 0, else -1.

    Args, device and errors as in `normal`.

    Returns:
        Tensor of shape (count,), float32.
    """
    return 1.0 - 2.0 * (words(seed, step, draw, parameter, start, count, device) < 0).float()


def words(
    seed: int, step: int, draw: int, parameter: int, start: int, count: int, device: torch.device | str = "cpu"
) -> Tensor:
    r"""`integers` as a tensor of shape (count,), int32: the same bits, for stochastic rounding."""
    check_key(seed, step, draw, parameter, start + count)
    if torch.device(device).type != "cpu":
        return kernels.words(seed, step, draw, parameter, start, count, torch.device(device))
    return torch.from_numpy(integers(seed, step, draw, parameter, start, count).view(np.int32))


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


def _words(step: int, draw: int, parameter: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    words = parameter & 0xFFFFFFFF, step, draw << 16 | parameter >> 32
    return np.uint64(words[0]).reshape(1), np.uint64(words[1]).reshape(1), np.uint64(words[2]).reshape(1)


@lru_cache(64)
def _keys(seed: int, rounds: int) -> list[tuple[np.uint64, np.uint64]]:
    """The key of each round, shifted to the high word."""
    low, high = seed & 0xFFFFFFFF, seed >> 32
    step0, step1 = WEYL
    return [
        (np.uint64((low + r * step0 & 0xFFFFFFFF) << 32), np.uint64((high + r * step1 & 0xFFFFFFFF) << 32))
        for r in range(rounds)
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


def check_key(seed: int, step: int, draw: int, parameter: int, end: int) -> None:
    """Raise a ValueError if a part of the key, or the number of elements ``end``, does not fit its field."""
    for name, value, limit in (
        ("seed", seed, 1 << 64),
        ("step", step, 1 << 32),
        ("draw", draw, 1 << 16),
        ("parameter id", parameter, 1 << 48),
        ("number of elements", end, MAX_ELEMENTS + 1),
    ):
        if not 0 <= value < limit:
            raise ValueError(f"{name} must be in [0, {limit}), got {value!r}; another key cannot be told from it")
