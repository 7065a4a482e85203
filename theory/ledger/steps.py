"""Steps of proofs that sympy can confirm."""

from __future__ import annotations

from typing import Any

import sympy

from theory.ledger.claim import Step


def identity(text: str, lhs: Any, rhs: Any) -> Step:
    """The two sides are the same expression."""
    return Step(text, lambda: sympy.simplify(sympy.sympify(lhs) - sympy.sympify(rhs)) == 0)


def nonnegative(text: str, expression: Any) -> Step:
    """The expression is at least 0 for all values that its symbols' assumptions allow, by sympy's own inference."""
    return Step(text, lambda: sympy.factor(sympy.sympify(expression)).is_nonnegative is True)


def positive(text: str, expression: Any) -> Step:
    """The expression is positive for all values that its symbols' assumptions allow, by sympy's own inference."""
    return Step(text, lambda: sympy.factor(sympy.sympify(expression)).is_positive is True)


def by_hand(text: str) -> Step:
    """A step that a reader checks."""
    return Step(text)
