r"""Functions of one variable with a piecewise linear second derivative: exact in rationals, minimal at 0.

They carry the exact searches and witnesses: steep ramps bring Assumption 2 to its limit, and the largest ratio of
curvatures over a distance R is found exactly. Sums ``Σ_j φ_j(v_jᵀ(θ − θ*))`` over an orthonormal basis v inherit the
radius, and in the coordinates p = V(θ − θ*) the basis drops out of every quantity of the proofs.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class Piecewise:
    r"""φ with φ(0) = φ'(0) = 0 and φ'' linear between knots, constant outside them.

    Args:
        knots: Where the slope of φ'' may change, strictly increasing.
        curvatures: φ'' at the knots, positive (zero is allowed where φ is one summand of a curved function).
    """

    knots: tuple[Fraction, ...]
    curvatures: tuple[Fraction, ...]

    def __post_init__(self) -> None:
        if not self.knots or len(self.knots) != len(self.curvatures):
            raise ValueError(f"one curvature a knot is needed, got {len(self.curvatures)} for {len(self.knots)} knots")
        if any(b <= a for a, b in zip(self.knots, self.knots[1:], strict=False)):
            raise ValueError(f"knots must increase strictly, got {self.knots}")
        if min(self.curvatures) < 0:
            raise ValueError(f"curvatures must not be negative, got {min(self.curvatures)}: φ would not be convex")

    def curvature(self, x: Fraction) -> Fraction:
        """φ''(x)."""
        if x <= self.knots[0]:
            return self.curvatures[0]
        if x >= self.knots[-1]:
            return self.curvatures[-1]
        right = bisect_left(self.knots, x)
        a, b = self.knots[right - 1], self.knots[right]
        ha, hb = self.curvatures[right - 1], self.curvatures[right]
        return ha + (hb - ha) * (x - a) / (b - a)

    def slope(self, x: Fraction) -> Fraction:
        """φ'(x)."""
        return self._integrals(x)[0]

    def value(self, x: Fraction) -> Fraction:
        """φ(x), which is the gap φ(x) − min φ."""
        return self._integrals(x)[1]

    @cached_property
    def _table(self) -> list[tuple[Fraction, Fraction, Fraction, Fraction]]:
        """At each knot and at 0: position, curvature, slope, value."""
        knots = sorted({*self.knots, Fraction(0)})
        zero = knots.index(Fraction(0))
        table = [(k, self.curvature(k), Fraction(0), Fraction(0)) for k in knots]
        for order in (range(zero + 1, len(knots)), range(zero - 1, -1, -1)):
            row = table[zero]
            for i in order:
                row = table[i] = (*table[i][:2], *_advance(row, *table[i][:2]))
        return table

    def _integrals(self, x: Fraction) -> tuple[Fraction, Fraction]:
        table = self._table
        right = bisect_left(table, x, key=lambda row: row[0])
        if x >= 0:
            row = table[right] if right < len(table) and table[right][0] == x else table[right - 1]
        else:
            row = table[right]
        return _advance(row, x, self.curvature(x))

    def worst_ratio(self, radius: Fraction) -> Fraction:
        r"""The largest φ''(x)/φ''(y) over |x − y| ≤ radius, exactly.

        For fixed y the ratio is piecewise linear in x, for fixed x monotone in y between knots, and along
        y = x ± radius a quotient of linear functions, monotone between the points where either meets a knot. So the
        largest value stands where x is a knot and y a knot or x ± radius, or the other way round.
        """
        worst = Fraction(1)
        for a, ha in zip(self.knots, self.curvatures, strict=True):
            first, last = bisect_left(self.knots, a - radius), bisect_right(self.knots, a + radius)
            near = [*self.curvatures[first:last], self.curvature(a - radius), self.curvature(a + radius)]
            worst = max(worst, ha / min(near), max(near) / ha)
        return worst

    def certifies(self, radius: Fraction) -> bool:
        """Whether Assumption 2 holds with this radius: curvatures differ by a factor of at most 2 within it."""
        return self.worst_ratio(radius) <= 2

    @cached_property
    def in_floats(self) -> FloatPiecewise:
        """The same function in float64, vectorised."""
        return FloatPiecewise(*(np.array([float(v) for v in column]) for column in zip(*self._table, strict=True)))


def _advance(row: tuple[Fraction, ...], x: Fraction, curvature: Fraction) -> tuple[Fraction, Fraction]:
    """Slope and value at x from those at a row's position; the curvature is linear in between."""
    position, start, slope, value = row
    length = x - position
    return (
        slope + (start + curvature) * length / 2,
        value + length * (slope + (2 * start + curvature) * length / 6),
    )


@dataclass(frozen=True)
class FloatPiecewise:
    """A :class:`Piecewise` in float64: knots with curvature, slope and value there."""

    knots: np.ndarray
    curvatures: np.ndarray
    slopes: np.ndarray
    values: np.ndarray

    def __call__(self, x: np.ndarray | float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Value, slope and curvature at x (any shape)."""
        left = np.clip(np.searchsorted(self.knots, x, side="right") - 1, 0, None)
        right = np.minimum(left + 1, len(self.knots) - 1)
        gap = self.knots[right] - self.knots[left]
        ramp = np.where(gap > 0, (self.curvatures[right] - self.curvatures[left]) / np.where(gap > 0, gap, 1.0), 0.0)
        offset = x - self.knots[left]
        ramp = np.where(offset < 0, 0.0, ramp)  # left of the first knot the curvature is constant
        curvature = self.curvatures[left] + ramp * offset
        slope = self.slopes[left] + offset * (self.curvatures[left] + ramp * offset / 2)
        value = self.values[left] + offset * (
            self.slopes[left] + offset * (self.curvatures[left] / 2 + ramp * offset / 6)
        )
        return value, slope, curvature


def quadratic(curvature: Fraction | int = 1) -> Piecewise:
    """φ(x) = curvature · x²/2; every radius is certified."""
    return Piecewise((Fraction(0),), (Fraction(curvature),))


def halving(depth: int, ramp: Fraction, radius: Fraction | int = 1) -> Piecewise:
    r"""The slowest growth that Assumption 2 allows: φ''(x + R) = φ''(x)/2 for x ≥ 0, φ''(0) = 1, even, ``depth`` times.

    Each halving takes place in a ramp of length ``ramp`` · R at the start of an interval of length R.
    """
    if not 0 < ramp <= 1:
        raise ValueError(f"ramp must be in (0, 1], got {ramp}: a share of the radius")
    radius = Fraction(radius)
    knots, curvatures = [Fraction(0)], [Fraction(1)]
    for k in range(depth):
        knots += [(k + ramp) * radius] + ([(k + 1) * radius] if ramp < 1 else [])
        curvatures += [Fraction(1, 2 ** (k + 1))] * (2 if ramp < 1 else 1)
    return even(knots, curvatures)


def even(knots: Sequence[Fraction | int], curvatures: Sequence[Fraction | int]) -> Piecewise:
    """The even function with these curvatures at these knots, the first of which is 0."""
    if knots[0] != 0:
        raise ValueError(f"the first knot must be 0, got {knots[0]}")
    right = [Fraction(k) for k in knots]
    values = [Fraction(c) for c in curvatures]
    return Piecewise(tuple([-k for k in reversed(right[1:])] + right), tuple(list(reversed(values[1:])) + values))
