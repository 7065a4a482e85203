"""Random exact instances: a seed from Hypothesis, everything else from a generator built on it."""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction
from typing import TypeVar

from hypothesis import strategies as st

T = TypeVar("T")


def seeded(make: Callable[[random.Random], T]) -> st.SearchStrategy[T]:
    """Instances made from a generator with a drawn seed."""
    return st.integers(0, 2**64 - 1).map(lambda seed: make(random.Random(seed)))


def rational(rng: random.Random, low: Fraction | int, high: Fraction | int, denominator: int = 6) -> Fraction:
    """A rational in [low, high] whose denominator is at most that of low, times that of high - low, times the given."""
    parts = rng.randint(1, denominator)
    return low + (Fraction(high) - low) * Fraction(rng.randint(0, parts), parts)


def distribution(rng: random.Random, size: int) -> tuple[Fraction, ...]:
    """Positive rational probabilities that sum to one."""
    weights = [rng.randint(1, 5) for _ in range(size)]
    return tuple(Fraction(weight, sum(weights)) for weight in weights)
