"""Comparisons that are never decided by rounding: exact rationals, or enclosures by Arb (python-flint)."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Literal

import flint
import sympy

Relation = Literal["<=", "<", ">=", ">", "==", "!="]

#: Working precision in bits of enclosures; :func:`related` doubles it for sympy expressions until it can tell.
START_BITS, MOST_BITS = 128, 8192
flint.ctx.prec = max(flint.ctx.prec, 192)

_FUNCTIONS = {
    sympy.exp: flint.arb.exp,
    sympy.log: flint.arb.log,
    sympy.cosh: flint.arb.cosh,
    sympy.sinh: flint.arb.sinh,
    sympy.tanh: flint.arb.tanh,
    sympy.sin: flint.arb.sin,
    sympy.cos: flint.arb.cos,
    sympy.atan: flint.arb.atan,
    sympy.Abs: abs,
}


class Undecided(ArithmeticError):
    """Two enclosures overlap, so the comparison proves nothing either way."""


def rational(value: Any) -> Fraction | None:
    """The value as an exact fraction, or None where it is not a rational number that is known exactly."""
    if isinstance(value, (bool, int, Fraction)):
        return Fraction(value)
    if isinstance(value, (flint.fmpz, flint.fmpq)):
        value = flint.fmpq(value)
        return Fraction(int(value.p), int(value.q))
    if isinstance(value, sympy.Rational):
        return Fraction(int(value.p), int(value.q))
    return None


def enclose(value: Any, where: Mapping[Any, Any] | None = None) -> flint.arb:
    """An enclosure of a number (rational, Arb, or sympy expression) at the present precision.

    Args:
        value: The number.
        where: What stands for the symbols of an expression.

    Raises:
        TypeError: If the value is a float (its rounding is unknown) or contains something not listed here.
    """
    if isinstance(value, flint.arb):
        return value
    exact = rational(value)
    if exact is not None:
        return flint.arb(flint.fmpq(exact.numerator, exact.denominator))
    if isinstance(value, float):
        raise TypeError(f"a float has an unknown error, got {value!r}; pass a Fraction, a sympy number or an arb")
    value = sympy.sympify(value)
    if where is not None and value in where:
        return enclose(where[value])
    if value is sympy.pi:
        return flint.arb.pi()
    if value is sympy.E:
        return flint.arb(1).exp()
    if isinstance(value, sympy.Add):
        return sum((enclose(term, where) for term in value.args), flint.arb(0))
    if isinstance(value, sympy.Mul):
        product = flint.arb(1)
        for factor in value.args:
            product *= enclose(factor, where)
        return product
    if isinstance(value, sympy.Pow):
        base, power = value.args
        if base is sympy.E:
            return enclose(power, where).exp()
        if power == sympy.Rational(1, 2):
            return enclose(base, where).sqrt()
        return enclose(base, where) ** enclose(power, where)
    if isinstance(value, (sympy.Max, sympy.Min)):
        parts = [enclose(part, where) for part in value.args]
        result = parts[0]
        for part in parts[1:]:
            result = result.max(part) if isinstance(value, sympy.Max) else result.min(part)
        return result
    if value.func in _FUNCTIONS:
        return _FUNCTIONS[value.func](enclose(value.args[0], where))
    raise TypeError(f"no enclosure is known for {value!r} ({type(value).__name__})")


def _decide(difference: flint.arb, relation: Relation) -> bool | None:
    """Whether ``difference relation 0`` is certain (True), certainly false (False) or open (None)."""
    negative, positive = bool(difference < 0), bool(difference > 0)
    at_most, at_least = bool(difference <= 0), bool(difference >= 0)
    zero = at_most and at_least
    certain = {"<": negative, "<=": at_most, ">": positive, ">=": at_least, "==": zero, "!=": negative or positive}
    opposite = {"<": at_least, "<=": positive, ">": at_most, ">=": negative, "==": negative or positive, "!=": zero}
    return True if certain[relation] else False if opposite[relation] else None


def related(lhs: Any, relation: Relation, rhs: Any) -> bool:
    """Whether ``lhs relation rhs`` holds, decided exactly or by enclosures that do not overlap.

    Args:
        lhs: A bool, int, Fraction, fmpq, sympy number, or arb.
        relation: One of ``<=  <  >=  >  ==  !=``.
        rhs: As lhs.

    Raises:
        Undecided: If the enclosures overlap (for sympy expressions: at 8192 bits too).
        TypeError: If a side is a float.
    """
    left, right = rational(lhs), rational(rhs)
    if left is not None and right is not None:
        return _exactly(left, relation, right)
    fixed = isinstance(lhs, flint.arb) or isinstance(rhs, flint.arb)
    if not fixed and relation in ("==", "!=", "<=", ">="):
        difference = sympy.simplify(sympy.sympify(lhs) - sympy.sympify(rhs))
        if difference.is_Rational:
            return _exactly(Fraction(int(difference.p), int(difference.q)), relation, Fraction(0))
    bits, before = START_BITS, flint.ctx.prec
    try:
        while bits <= MOST_BITS:
            flint.ctx.prec = max(before, bits)
            answer = _decide(enclose(lhs) - enclose(rhs), relation)
            if answer is not None:
                return answer
            if fixed:
                break
            bits *= 2
    finally:
        flint.ctx.prec = before
    raise Undecided(f"{lhs} {relation} {rhs}: the enclosures overlap")


def surely(lhs: Any, relation: Relation, rhs: Any) -> bool:
    """Whether the relation is certain; False where enclosures overlap. For building instances, never for judging."""
    try:
        return related(lhs, relation, rhs)
    except Undecided:
        return False


def _exactly(left: Fraction, relation: Relation, right: Fraction) -> bool:
    return {
        "<=": left <= right,
        "<": left < right,
        ">=": left >= right,
        ">": left > right,
        "==": left == right,
        "!=": left != right,
    }[relation]


def same(first: Any, second: Any) -> bool:
    """Whether two exact values are equal; used to compare a recorded value with the recomputed one."""
    return related(first, "==", second)
