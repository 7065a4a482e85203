"""One value of a number for searches, proofs and sentences: as keyword argument, as symbol, as ``«name»`` in texts."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, TypeVar

import sympy

from theory.ledger.claim import Claim
from theory.ledger.exact import rational

T = TypeVar("T")
Values = Mapping[str, Any]

PLACE = re.compile("«(\\w+)»")
_DECIMALS = (10, 100, 1000)


def constant(name: str) -> sympy.Symbol:
    """The symbol of a constant, for expressions of proofs and formulas."""
    return sympy.Symbol(f"«{name}»", positive=True)


def values_of(claim: Claim, false: str | None = None) -> dict[str, Any]:
    """The claim's constants and formulas; with one constant false, where it is named."""
    values = {name: one.false if name == false else one.claimed for name, one in claim.constants.items()}
    return values | {name: put(formula, values) for name, formula in claim.formulas.items()}


def put(expression: Any, values: Values) -> sympy.Expr:
    """The expression with its constants put in."""
    expression = sympy.sympify(expression)
    found = {symbol: symbol.name.strip("«»") for symbol in expression.free_symbols if symbol.name.startswith("«")}
    return expression.subs({symbol: _as_sympy(values[name]) for symbol, name in found.items()})


def _as_sympy(value: Any) -> sympy.Expr:
    exact = rational(value)
    return sympy.sympify(value) if exact is None else sympy.Rational(exact.numerator, exact.denominator)


def named_by(function: Callable[..., Any], values: Values) -> dict[str, Any]:
    """Those of the values that the function takes by name."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(values)
    return {name: value for name, value in values.items() if name in parameters}


def needed(claim: Claim, names: set[str]) -> set[str]:
    """The constants among the names, and those in the formulas among them."""
    inside = {m for name in names & set(claim.formulas) for m in PLACE.findall(str(claim.formulas[name]))}
    return (names | inside) & set(claim.constants)


def latex(value: Any) -> str:
    """The value as LaTeX; tenths, hundredths and thousandths as decimals."""
    exact = rational(value)
    if exact is None:
        return str(sympy.latex(value, ln_notation=True))
    if exact.denominator in (1, *_DECIMALS):
        return plain(value)
    return rf"{'-' if exact < 0 else ''}\frac{{{abs(exact.numerator)}}}{{{exact.denominator}}}"


def plain(value: Any) -> str:
    """The value as text."""
    exact = rational(value)
    if exact is None:
        return str(value)
    if exact.denominator in _DECIMALS:
        return str(float(exact))
    return str(exact)


def written(claim: Claim, values: Values | None = None) -> Claim:
    """The claim with its constants and formulas put into its texts."""
    values = values_of(claim) if values is None else values
    done: Claim = dataclasses.replace(_written(claim, values), answer=_filled(claim.answer, values, plain))
    return done


def _filled(text: str, values: Values, spell: Callable[[Any], str] = latex) -> str:
    return PLACE.sub(lambda match: spell(values[match[1]]), text)


def _written(part: T, values: Values) -> T:
    """The part with the texts of all dataclasses inside it filled."""
    if isinstance(part, str) and type(part) is str:
        return _filled(part, values)  # type: ignore[return-value]
    if isinstance(part, tuple):
        return tuple(_written(piece, values) for piece in part)  # type: ignore[return-value]
    if dataclasses.is_dataclass(part) and not isinstance(part, (type, Fraction)):
        kept = {f.name: _written(getattr(part, f.name), values) for f in dataclasses.fields(part)}
        return dataclasses.replace(part, **kept)
    return part
