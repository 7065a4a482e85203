"""The README's table of verdicts is what the modules expect and answer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.theory.conftest import CLAIMS
from theory import table
from theory.ledger import book
from theory.ledger.claim import Verdict
from theory.ledger.ids import IDS

ROOT = Path(__file__).parents[2]


def test_the_readme_and_the_ledger_are_current() -> None:
    text = table.README.read_text(encoding="utf-8")
    assert text == table.placed(text, table.markdown()), f"run: {table.COMMAND}"
    told = re.search(
        r"Of (\d+) claims\D+(\d+) hold, (\d+) hold after repair, (\d+) are.*, (\d+) is ill.* and (\d+) can", text
    )
    number = book.counts([{"id": claim.id, "verdict": claim.expected} for claim in CLAIMS.values()])
    assert told is not None
    assert [int(count) for count in told.groups()] == [len(IDS), *(number[verdict] for verdict in Verdict)]
    assert table.LEDGER.read_text(encoding="utf-8") == table.ledger(), f"run: {table.COMMAND}"


def test_the_ledger_has_a_sentence_of_evidence_for_every_claim() -> None:
    lines = table.ledger().splitlines()
    for id in CLAIMS:
        (line,) = [line for line in lines if line.startswith(f"| [{id}](")]
        *_, sentence, end = line.replace("\\|", "").split("|")
        assert sentence.strip().endswith("."), line
        assert len(sentence) > 10
        assert end == ""
        assert (table.LEDGER.parent / line.partition("](")[2].partition(")")[0]).is_file()
    assert "«" not in table.ledger()


def test_every_claim_has_a_line_with_its_verdict_and_module() -> None:
    lines = table.markdown().splitlines()
    for id, claim in CLAIMS.items():
        (line,) = [line for line in lines if line.startswith(f"| [{id}](")]
        assert f"| {claim.expected.replace('_', ' ')} |" in line
        assert (ROOT / line.partition("](")[2].partition(")")[0]).is_file()
        assert line.replace("\\|", "").count("|") == 4
    assert f"Of {len(IDS)} claims" in lines[0]


def test_a_text_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="markers"):
        table.placed("no markers", "table")
    with pytest.raises(ValueError, match="markers"):
        table.placed(f"{table.END} {table.BEGIN}", "table")
