"""Steps of proofs that sympy can confirm. Each has a false form, which the same check must refuse.

Expressions may hold constants of the claim (:func:`theory.ledger.constants.constant`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sympy

from theory.ledger.claim import Step
from theory.ledger.constants import put


def identity(text: str, lhs: Any, rhs: Any, where: Mapping[Any, Any] | None = None) -> Step:
    """The two sides are the same expression.

    Args:
        text: What the step says.
        lhs: Left side.
        rhs: Right side.
        where: What to put for symbols of either side.

    Raises:
        ValueError: If there is nothing to show: no symbol, or sides that are written alike.
    """
    lhs, rhs = sympy.sympify(lhs), sympy.sympify(rhs)
    _has_symbols(text, sympy.Integer(0) if lhs == rhs else sympy.Tuple(lhs, rhs))

    def check(off: int = 0, **values: Any) -> bool:
        return sympy.simplify(put((lhs - rhs).subs(where or {}), values) - off) == 0

    return Step(text, check, {"off": 1})


def nonnegative(text: str, expression: Any) -> Step:
    """The expression is at least 0 for all values that its symbols' assumptions allow, by sympy's own inference.

    Raises:
        ValueError: If it has no symbol.
    """
    return _signed(text, expression, "is_nonnegative")


def positive(text: str, expression: Any) -> Step:
    """The expression is positive for all values that its symbols' assumptions allow, by sympy's own inference.

    Raises:
        ValueError: If it has no symbol.
    """
    return _signed(text, expression, "is_positive")


def by_hand(text: str, *cites: str) -> Step:
    """A step that a reader checks, and the claims that it rests on."""
    return Step(text, cites=cites)


def _signed(text: str, expression: Any, sign: str) -> Step:
    expression = sympy.sympify(expression)
    _has_symbols(text, expression)

    def check(times: int = 1, **values: Any) -> bool:
        return getattr(sympy.factor(times * put(expression, values)), sign) is True

    return Step(text, check, {"times": -1})


def _has_symbols(text: str, expression: Any) -> None:
    if not expression.free_symbols:
        raise ValueError(
            f"the step {text!r} has nothing to show: no symbol, or sides that are written alike; write it in symbols"
        )
