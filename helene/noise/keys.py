"""The key of a number and the generator's constants, for every implementation of it."""

from __future__ import annotations

import hashlib

NOISE_VERSION = "philox4x32-7/box-muller/1"
ROUNDS = 7
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57  # of Philox, and what its key grows by each round
WEYL = 0x9E3779B9, 0xBB67AE85
MASK = 0xFFFFFFFF
CURVATURE_DRAW = 1 << 15  # draws from here on belong to the curvature's own minibatch
LABEL_DRAW = (1 << 16) - 2
ROUNDING_DRAW = (1 << 16) - 3  # stochastic rounding of the weights
STATE_DRAW = (1 << 16) - 64  # from here on, of the state tensors, in the order in which a method names them
MAX_ELEMENTS = 1 << 34


def parameter_id(name: str | int) -> int:
    r"""48-bit id of a parameter: a hash of its name, or of its position where it has no name."""
    text = f"name:{name}" if isinstance(name, str) else f"position:{name}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest(), "little")


def counter_words(step: int, draw: int, parameter: int) -> tuple[int, int, int]:
    """The words of the counter after that of the element."""
    return parameter & MASK, step, draw << 16 | parameter >> 32


def blocks(start: int, count: int) -> tuple[int, int]:
    """First block of four elements, and the one after the last."""
    return start // 4, -(-(start + count) // 4)


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
