r"""Rounding that keeps what a 16-bit or 8-bit format cannot hold in one step.

A zeroth-order update is far below half a unit in the last place of a 16-bit weight, so rounding to nearest loses it.
Stochastic rounding goes to either neighbour with the probability that makes the mean exact: small updates add up. The
random words are the caller's (`helene.noise`), so that a run is reproducible on every device.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 256  # elements that share a scale in 8-bit state
STATE_DTYPES = ("float32", "bfloat16", "8bit")

_KEPT = {torch.bfloat16: 7, torch.float16: 10}  # mantissa bits
_SMALLEST_NORMAL = 2.0**-14  # of float16; below it the grid is even, as in the last binade
_FLOAT16_GRID = 2.0**24
LEAST_SCALE = 2.0**-90  # 255⁴ over it is finite


def round_stochastically(x: Tensor, words: Tensor, dtype: torch.dtype) -> Tensor:
    r"""x in a 16-bit dtype, E = x up to 2^-24 units in the last place; exact values stay as they are.

    Args:
        x: float32.
        words: Uniform 32-bit words of x's shape, as int32; only the high bits are used (16 for bfloat16, 13 for
            float16, 24 for float16's subnormal numbers).
        dtype: ``torch.bfloat16`` or ``torch.float16``.

    Raises:
        KeyError: If the dtype has another width.
    """
    dropped = 23 - _KEPT[dtype]
    below = (1 << dropped) - 1
    noise = (words >> (32 - dropped)) & below
    rounded = ((x.view(torch.int32) + noise) & ~below).view(torch.float32)
    if dtype == torch.float16:
        grid = x.abs() * _FLOAT16_GRID
        low = grid.floor()
        small = (low + (_uniform(words) < grid - low)) / _FLOAT16_GRID
        rounded = torch.where(x.abs() < _SMALLEST_NORMAL, small.copysign(x), rounded)
    return torch.where(x.isnan(), x, rounded).to(dtype)  # an all-ones payload would carry into the sign


def encode(x: Tensor, words: Tensor, nonnegative: bool) -> tuple[Tensor, Tensor]:
    r"""x in 8 bits an element and a float32 scale a block of `BLOCK`; `decode` gives x back in the mean.

    Codes k stand for scale · sign(k) (k / 127)² (int8), or scale · (k / 255)⁴ where x is nonnegative (uint8): the
    spacing grows with the value, so that a second moment that spans nine decades keeps two digits. A nonnegative value
    above zero never becomes zero, for it is divided by.

    In units of scale / 127² (or 255⁴) the levels are powers k², so that x = k² + r goes up where u (2k + 1) < r: one
    division a block.

    Args:
        x: float32, shape (n,), from the start of a block.
        words: Uniform 32-bit words of x's shape, as int32.
        nonnegative: Whether x has no negative elements.

    Returns:
        Codes (n,), int8 or uint8, and scales (ceil(n / BLOCK),), float32: a block's largest magnitude, at least 2^-90.
    """
    size, top = x.numel(), top_of(nonnegative)
    blocks = torch.nn.functional.pad(x.abs(), (0, -size % BLOCK)).view(-1, BLOCK)
    scales = blocks.amax(dim=1).clamp_min(LEAST_SCALE)
    units = (blocks * (top / scales)[:, None]).view(-1)[:size].clamp_max(top)
    low = (units.sqrt().sqrt() if nonnegative else units.sqrt()).floor()
    here, gap = low * low, low + low + 1.0
    if nonnegative:
        gap *= 2.0 * (here + low) + 1.0
        here *= here
    codes = low + (_uniform(words) * gap < units - here)
    if nonnegative:
        return torch.where(x > 0, codes.clamp_min(1.0), codes).to(torch.uint8), scales
    return codes.copysign(x).to(torch.int8), scales


def decode(codes: Tensor, scales: Tensor) -> Tensor:
    r"""float32 values of codes, see `encode`; which law holds follows from their dtype."""
    nonnegative = codes.dtype == torch.uint8
    code = codes.float()
    units = (code * code).square() if nonnegative else code * code.abs()
    return units * (scales * (1.0 / top_of(nonnegative))).repeat_interleave(BLOCK)[: codes.numel()]


def state_bytes(size: int, dtype: str, wide: int = 4) -> int:
    r"""Bytes that one state tensor of that many elements takes; ``wide`` is what "float32" means for a parameter."""
    if dtype == "8bit":
        return size + 4 * -(-size // BLOCK)
    return size * (2 if dtype == "bfloat16" else wide)


def top_of(nonnegative: bool) -> float:
    """Units of the largest 8-bit code."""
    return 255.0**4 if nonnegative else 127.0**2


def _uniform(words: Tensor) -> Tensor:
    """24-bit uniform numbers in [0, 1)."""
    return ((words >> 8) & 0xFFFFFF).float() * 2.0**-24
