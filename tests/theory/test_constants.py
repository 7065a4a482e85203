"""Constants, steps and worlds: what the run accepts, and each way of making a check that can't fail is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import sympy
from flint import fmpq
from hypothesis import strategies as st

from tests.theory.mutants import witnesses
from theory.ledger.claim import Claim, Constant, Missing, Proof, Search, Step, Twin, Verdict
from theory.ledger.constants import constant, latex, plain, put, values_of, written
from theory.ledger.exact import rational
from theory.ledger.judge import examine, fallen
from theory.ledger.steps import identity, nonnegative, positive

X, Y = sympy.symbols("x y", positive=True)
INTEGERS = st.integers(1, 100)
CLAIM = Claim(
    id="ours",
    place="here",
    statement=r"$n \le «two»n$, at most $«formula»$",
    expected=Verdict.HOLDS,
    evidence=(),
    answer="at most «two»",
    constants={"two": Constant(2, Fraction(1, 2))},
    formulas={"formula": constant("two") * X / 3},
)


def test_a_search_needs_the_power_to_refute_each_false_constant() -> None:
    strong = Search("", lambda n, two: (n, two * n), strategy=INTEGERS)
    found = examine(strong, CLAIM)
    assert found.confirmed
    assert [(power.constant, power.factor) for power in found.powers] == [("two", 4)]
    for weak in (lambda n, two: (n, 2 * n), lambda n, two: (0, 1), lambda n: (n, 2 * n)):
        assert not examine(replace(strong, sides=weak), CLAIM).confirmed
    assert "no power" in examine(replace(strong, sides=lambda n, two: (n, 2 * n)), CLAIM).detail
    assert "counterexample" in examine(replace(strong, sides=lambda n, two: (n, 50)), CLAIM).detail


def test_a_formula_carries_its_constants_into_a_search() -> None:
    search = Search("", lambda n, formula: (n, formula.subs(X, 3 * n)), strategy=INTEGERS)
    assert [power.constant for power in examine(search, CLAIM).powers] == ["two"]


def test_a_dropped_hypothesis_shares_everything_else() -> None:
    search = Search("", lambda n: (n, 100), strategy=INTEGERS, twin=Twin("n ≤ 100", strategy=st.integers(1, 10**4)))
    assert examine(search).confirmed
    assert "survived" in examine(replace(search, twin=Twin("nothing", strategy=INTEGERS))).detail


def test_a_step_that_cannot_fail_is_refused() -> None:
    for make in (
        lambda: identity("", 1, 1),
        lambda: identity("", X, X),
        lambda: identity("", 2 * X, X + X),
        lambda: nonnegative("", 1),
        lambda: positive("", sympy.Rational(1, 2)),
    ):
        with pytest.raises(ValueError, match="nothing to show"):
            make()
    for step in (Step("", lambda: True), Step("", lambda **given: True, {"off": 1})):
        assert "can't fail" in examine(Proof("", (step,))).detail
    assert examine(Proof("", (Step("", lambda off=0: off == 0, {"off": 1}),))).confirmed
    assert examine(Proof("", (identity("", (X + 1) ** 2, X**2 + 2 * X + 1),))).confirmed
    assert "not confirmed" in examine(Proof("", (identity("", X, Y),))).detail


def test_a_proof_depends_on_the_constant() -> None:
    two = constant("two")
    assert examine(Proof("", (identity("", X + X, two * X, {Y: X}),)), CLAIM).confirmed
    assert "goes through" in examine(Proof("", (identity("", Y + X, 2 * X, {Y: X}),)), CLAIM).detail


def test_nothing_rests_on_a_claim_that_is_refuted_or_unknown() -> None:
    assert fallen("T-scale") == "T-scale is refuted"
    with pytest.raises(ValueError, match="no module judges"):
        fallen("L99")


def test_worlds_must_contradict_one_printed_thing_each() -> None:
    missing = Missing(
        "",
        "",
        printed=lambda world: {"a": world["a"] == 1, "b": world["b"] == 1},
        assertion=lambda world: world["c"],
        true_world={"a": 1, "b": 1, "c": True},
        false_world={"a": 1, "b": 1, "c": False},
        impossible={"a": {"a": 0, "b": 1, "c": True}, "b": {"a": 1, "b": 0, "c": True}},
    )
    assert examine(missing).confirmed
    for impossible in ({}, {"a": missing.impossible["a"]}, {**missing.impossible, "a": {"a": 0, "b": 0, "c": True}}):
        assert not examine(replace(missing, impossible=impossible)).confirmed
    assert not examine(replace(missing, printed=lambda world: {"a": True, "b": world["b"] == 1})).confirmed


def test_numbers_are_written_as_people_write_them() -> None:
    assert [latex(v) for v in (4, fmpq(1, 4), Fraction(-3, 7), Fraction(153, 10))] == [
        "4", r"\frac{1}{4}", r"-\frac{3}{7}", "15.3",
    ]  # fmt: skip
    assert [plain(v) for v in (4, fmpq(1, 4), Fraction(153, 10))] == ["4", "1/4", "15.3"]
    found = written(CLAIM)
    assert found.answer == "at most 2"
    assert found.statement == r"$n \le 2n$, at most $\frac{2 x}{3}$"
    assert put(constant("two") * X, values_of(CLAIM, "two")) == X / 2


def test_the_text_of_a_witness_states_both_sides(claim: Claim) -> None:
    """The recorded values, which the run compares with the computed ones, stand in the witness's text."""
    for witness in witnesses(claim):
        text = _bare(witness.text)
        for value in witness.recorded:
            stated = [re.search(rf"(?<![\d.]){re.escape(form)}(?![\d]|\.\d)", text) for form in _forms(value)]
            assert any(stated) or rational(value) is None, (value, witness.text)


def _bare(text: str) -> str:
    """Fractions as quotients, digits without what sets thousands apart."""
    text = re.sub(r"(?<=\d)(?:\\,|\{,\}|,| )(?=\d{3})", "", text)
    return re.sub(r"\\frac\s*(?:{(-?[\d.]+)}|(\d))\s*(?:{(\d+)}|(\d))", _quotient, text)


def _quotient(match: re.Match[str]) -> str:
    return f"{match[1] or match[2]}/{match[3] or match[4]} "


def _forms(value: Any) -> list[str]:
    exact = rational(value)
    if exact is None:
        return []
    powers = [f"10^{n}" for n in range(2, 9) if exact == 10**n]
    return [str(abs(exact)), *(f"{float(abs(exact)):.{digits}f}" for digits in range(1, 4)), *powers]
