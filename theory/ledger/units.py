"""Units of expressions: exponents that follow from L → cL, θ → sθ and the like, computed from the expression tree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sympy

Exponents = dict[str, sympy.Expr]


class MixedUnits(ValueError):
    """A sum or a transcendental function whose terms do not have one unit."""


def _scaled(exponents: Mapping[str, Any], factor: Any) -> Exponents:
    return _clean({name: sympy.sympify(value) * factor for name, value in exponents.items()})


def _clean(exponents: Mapping[str, Any]) -> Exponents:
    return {name: value for name, value in sorted(exponents.items()) if sympy.sympify(value) != 0}


def _times(first: Mapping[str, Any], second: Mapping[str, Any]) -> Exponents:
    names = {*first, *second}
    return _clean({name: sympy.sympify(first.get(name, 0)) + second.get(name, 0) for name in names})


def units_of(expression: Any, units: Mapping[sympy.Symbol, Mapping[str, Any]]) -> Exponents:
    """Unit exponents of an expression.

    Args:
        expression: A sympy expression; symbols not in ``units`` and numbers are pure.
        units: For example ``{mu: {"loss": 1, "theta": -2}}``.

    Returns:
        The exponents that are not zero, by name of the unit; empty for a pure number.

    Raises:
        MixedUnits: If terms of a sum differ, or exp, log or the like is applied to something with a unit.
    """
    expression = sympy.sympify(expression)
    if expression.is_Number or expression.is_NumberSymbol:
        return {}
    if isinstance(expression, sympy.Symbol):
        return _clean(units.get(expression, {}))
    if isinstance(expression, (sympy.Mul, sympy.MatMul)):
        result: Exponents = {}
        for factor in expression.args:
            result = _times(result, units_of(factor, units))
        return result
    if isinstance(expression, sympy.Pow) and expression.args[1].is_number:
        return _scaled(units_of(expression.args[0], units), expression.args[1])
    if isinstance(expression, (sympy.Add, sympy.Max, sympy.Min)):
        each = [units_of(term, units) for term in expression.args if term != 0]
        for term, exponents in zip(expression.args[1:], each[1:], strict=False):
            if exponents != each[0]:
                raise MixedUnits(
                    f"{expression.args[0]} has {each[0] or 'no unit'}, {term} has {exponents or 'no unit'}"
                )
        return each[0]
    if isinstance(expression, sympy.Abs):
        return units_of(expression.args[0], units)
    for argument in expression.args:
        inner = units_of(argument, units)
        if inner:
            raise MixedUnits(f"{expression.func.__name__} of something with the unit {inner}")
    return {}
