"""Numbers and findings in the claims' texts read as the page writes them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from theory.ledger import judge, library
from theory.ledger.claim import Undefined
from theory.sources import measured

HYPHEN = re.compile(r"(?<![\w^{}()$.-])-(?=\d)")


def test_no_answer_and_no_note_has_a_hyphen_for_a_minus() -> None:
    for claim in library.load_claims():
        for text in (claim.answer, re.sub(r"\$.+?\$|`.+?`", "", claim.note)):
            assert not HYPHEN.search(text), f"{claim.id}: {text}"


def test_a_measured_answer_has_true_minus_signs_and_its_command_hyphens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = {"claim": "X", "verdict": "v", "answer": "-11.7, from -50.6 (8-bit) to +2.9", "command": "run --least -1"}
    monkeypatch.setattr(measured, "RECORDS", tmp_path / "claims.jsonl")
    measured.RECORDS.write_text(json.dumps(record), encoding="utf-8")
    assert (
        measured.measured("X") == " Measured here: −11.7, from −50.6 (8-bit) to +2.9 (*v*; remade by `run --least -1`.)"
    )


def test_readings_of_an_undefined_symbol_are_told_as_a_sentence() -> None:
    readings = {"0": lambda: False, "1/λ": lambda: False, "5": lambda: True}
    found = judge.examine(Undefined("", "β", readings, {"0": False, "1/λ": False, "5": True}))
    assert found.confirmed
    assert found.detail == "the statement is false with β read as 0, false with 1/λ, true with 5"


def test_readings_that_give_numbers_are_told_as_a_sentence() -> None:
    found = judge.examine(Undefined("", "β", {"0": lambda: 1, "5": lambda: 2}, {"0": 1, "5": 2}))
    assert found.detail == "the statement is 1 with β read as 0, 2 with 5"
