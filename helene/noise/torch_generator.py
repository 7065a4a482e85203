r"""The generator in plain torch operations, for devices without Triton: the same integers, the same normals.

A product of two 32-bit words is formed in int64, where it wraps to the same 64 bits; its high word is taken by a shift
and a mask. Slow beside a fused kernel (about 100 operations a chunk), but it runs wherever torch does.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from helene.noise.keys import MASK, MULTIPLIERS, WEYL, blocks, counter_words

_CHUNK = 1 << 22  # blocks; bounds the workspace, about 0.3 GB


def words(
    seed: int, step: int, draw: int, parameter: int, start: int, count: int, device: torch.device, rounds: int
) -> Tensor:
    r"""The generator's words for elements [start, start + count), int32, shape (count,)."""
    first, last = blocks(start, count)
    columns = _philox(first, last, seed, step, draw, parameter, device, rounds)
    found = torch.stack(columns, dim=1).view(-1)[start - 4 * first :][:count]
    return torch.where(found >= 1 << 31, found - (1 << 32), found).to(torch.int32)


def normal(
    seed: int, step: int, draw: int, parameter: int, start: int, count: int, device: torch.device, rounds: int
) -> Tensor:
    r"""Elements [start, start + count) of z, float32, shape (count,); see `helene.noise.normal`."""
    first, last = blocks(start, count)
    out = torch.empty(last - first, 4, dtype=torch.float32, device=device)
    for low in range(first, last, _CHUNK):
        high = min(low + _CHUNK, last)
        x0, x1, x2, x3 = _philox(low, high, seed, step, draw, parameter, device, rounds)
        part = out[low - first : high - first]
        _box_muller(x0, x1, part[:, 0], part[:, 1])
        _box_muller(x2, x3, part[:, 2], part[:, 3])
    return out.view(-1)[start - 4 * first :][:count]


def _philox(
    first: int, last: int, seed: int, step: int, draw: int, parameter: int, device: torch.device, rounds: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    c0 = torch.arange(first, last, dtype=torch.int64, device=device)
    c1, c2, c3 = (torch.full_like(c0, word) for word in counter_words(step, draw, parameter))
    k0, k1 = seed & MASK, seed >> 32
    for _ in range(rounds):
        a, b = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1, c2, c3 = (b >> 32 & MASK) ^ c1 ^ k0, b & MASK, (a >> 32 & MASK) ^ c3 ^ k1, a & MASK
        k0, k1 = k0 + WEYL[0] & MASK, k1 + WEYL[1] & MASK
    return c0, c1, c2, c3


def _box_muller(x: Tensor, y: Tensor, first: Tensor, second: Tensor) -> None:
    radius = (x.float() * 2.0**-32 + 2.0**-33).log_().mul_(-2.0).sqrt_()
    angle = (y >> 8).float() * (2.0 * math.pi / 2**24)
    torch.mul(radius, angle.cos(), out=first)
    torch.mul(radius, angle.sin(), out=second)
