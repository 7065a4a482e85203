"""Exact moments: of polynomials in independent standard normals, and of functions of a few discrete variables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

import sympy


def normal_moment(power: int) -> int:
    """E z^n of a standard normal: 0 for odd n, (n − 1)!! for even n."""
    return 0 if power % 2 else int(sympy.factorial2(power - 1))


def gaussian_mean(polynomial: Any, normals: Sequence[sympy.Symbol]) -> Any:
    """The mean of a polynomial in independent standard normals, exactly, as an expression in the other symbols."""
    return sympy.expand(
        sum(
            coefficient * sympy.prod([normal_moment(power) for power in powers])
            for powers, coefficient in sympy.Poly(sympy.expand(polynomial), *normals).terms()
        )
    )


Law = Sequence[tuple[Any, Any]]
"""A finite law: (value, probability) pairs."""


def mean(law: Law) -> Any:
    """Mean of a finite law."""
    return sum((value * probability for value, probability in law), Fraction(0))


def variance(law: Law) -> Any:
    """Variance of a finite law."""
    centre = mean(law)
    return sum(((value - centre) ** 2 * probability for value, probability in law), Fraction(0))


def law_of(values: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Equal values put together."""
    found: dict[Any, Any] = {}
    for value, probability in values:
        found[value] = found.get(value, Fraction(0)) + probability
    return sorted(found.items())


def sum_law(law: Law, count: int) -> list[tuple[Any, Any]]:
    """The law of the sum of ``count`` independent draws, by convolution."""
    total: list[tuple[Any, Any]] = [(Fraction(0), Fraction(1))]
    for _ in range(count):
        total = law_of((a + b, p * q) for a, p in total for b, q in law)
    return total
