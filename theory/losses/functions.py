r"""Functions of one variable for exact and enclosed layers: values in flint's rationals (fmpq) and balls (arb), mixed.

:class:`Ramps` is a :class:`~theory.losses.piecewise.Piecewise`, exact at rationals; :class:`Curve` is a
:class:`~theory.losses.smooth.Smooth`, enclosed. Both have their minimum 0 at 0.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from types import SimpleNamespace
from typing import Any, TypeAlias

import sympy
from flint import arb, fmpq, fmpz

from theory.ledger.exact import enclose
from theory.losses.piecewise import Piecewise
from theory.losses.smooth import Smooth

#: An fmpq, exact; or an arb, an enclosure.
Number: TypeAlias = Any
Parts = tuple[Number, Number, Number]

#: The functions of theory.losses.smooth, for Arb.
ARB = SimpleNamespace(exp=arb.exp, log=arb.log, sqrt=arb.sqrt, cosh=arb.cosh, sinh=arb.sinh, tanh=arb.tanh)

ZERO, HALF, ONE = fmpq(0), fmpq(1, 2), fmpq(1)


def as_fmpq(value: Fraction | int) -> fmpq:
    """As flint's rational."""
    return fmpq(value.numerator, value.denominator)


def as_sympy(value: fmpq) -> sympy.Rational:
    """As sympy's rational."""
    return sympy.Rational(int(value.p), int(value.q))


def total(values: Iterable[Number]) -> Number:
    """Their sum, exact if all are."""
    return sum(values, ZERO)


def least(values: Iterable[Number]) -> Number:
    """The smallest, exact if all are."""
    values = list(values)
    if any(isinstance(value, arb) for value in values):
        result = enclose(values[0])
        for value in values[1:]:
            result = result.min(enclose(value))
        return result
    return min(values)


def midpoint(x: arb) -> fmpq:
    """The midpoint of an enclosure, exactly."""
    mantissa, exponent = x.mid().man_exp()
    power = fmpz(2) ** abs(int(exponent))
    return fmpq(mantissa * power) if exponent >= 0 else fmpq(mantissa, power)


def clamp(x: Number, bound: Number) -> Number:
    """x clipped to [−bound, bound]."""
    return -least([-least([x, bound]), bound])


class Ramps:
    """φ with φ(0) = φ'(0) = 0 and φ'' linear between knots: exact at rationals, enclosed at enclosures.

    The same function as a :class:`~theory.losses.piecewise.Piecewise`, with values and slopes at the knots kept.
    """

    def __init__(self, shape: Piecewise) -> None:
        self.shape = shape
        given = dict(zip(shape.knots, shape.curvatures, strict=True))
        given.setdefault(0 * shape.knots[0], shape.curvature(0 * shape.knots[0]))
        pairs = sorted(given.items())
        self.knots = [as_fmpq(x) for x, _ in pairs]
        self.curvatures = [as_fmpq(c) for _, c in pairs]
        lengths = [b - a for a, b in zip(self.knots, self.knots[1:], strict=False)]
        ends = list(zip(self.curvatures, self.curvatures[1:], strict=False))
        self.bends = [(d - c) / length for (c, d), length in zip(ends, lengths, strict=True)]
        origin = self.knots.index(ZERO)
        self.slopes, self.values = [ZERO] * len(pairs), [ZERO] * len(pairs)
        for k in range(origin, len(pairs) - 1):
            self.values[k + 1], self.slopes[k + 1], _ = self._from(k, lengths[k])
        for k in range(origin - 1, -1, -1):
            length, (c, d) = lengths[k], ends[k]
            self.slopes[k] = self.slopes[k + 1] - (c + d) * length / 2
            self.values[k] = self.values[k + 1] - self.slopes[k] * length - (2 * c + d) * length**2 / 6

    def __repr__(self) -> str:
        pieces = ", ".join(f"{x}: {c}" for x, c in zip(self.knots, self.curvatures, strict=True))
        return f"Ramps({pieces})"

    def _from(self, k: int, offset: fmpq) -> Parts:
        """Value, slope and curvature at an offset from a knot, to the right (to the left only for the first)."""
        bend = self.bends[k] if k < len(self.bends) and offset >= 0 else ZERO
        curvature = self.curvatures[k] + bend * offset
        slope = self.slopes[k] + offset * (self.curvatures[k] + bend * offset / 2)
        value = self.values[k] + offset * (self.slopes[k] + offset * (self.curvatures[k] / 2 + bend * offset / 6))
        return value, slope, curvature

    def at(self, x: Number) -> Parts:
        """Value, slope and curvature at x."""
        if isinstance(x, fmpq):
            k = max(0, bisect_right(self.knots, x) - 1)
            return self._from(k, x - self.knots[k])
        middle = midpoint(x)
        value, slope, curvature = self.at(middle)
        reach = arb(0, x.rad())
        slope = slope + reach * max(self.curvatures)
        return value + reach * slope, slope, curvature + reach * max(map(abs, self.bends), default=ZERO)


@dataclass(frozen=True)
class Curve:
    """A smooth φ of :mod:`theory.losses.smooth`, with rational parameters, enclosed."""

    kind: Any
    amplitude: fmpq = ONE
    scale: fmpq = ONE
    shift: fmpq = ZERO

    @cached_property
    def _smooth(self) -> Smooth:
        return Smooth(self.kind, enclose(self.amplitude), enclose(self.scale), enclose(self.shift))

    @property
    def radius(self) -> fmpq:
        """A radius of Assumption 2: |(ln φ'')'| ≤ K/scale gives ln 2 · scale / K, and ln 2 > 0.69."""
        return fmpq(69, 100) * self.scale / fmpq(*Smooth(self.kind).log_slope.as_integer_ratio())

    def at(self, x: Number) -> Parts:
        """Value, slope and curvature at x."""
        return self._smooth(enclose(x), ARB)


Phi = Ramps | Curve
