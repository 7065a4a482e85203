"""The ledger's page, and the README's sentence on it, are what the modules expect and answer."""

from __future__ import annotations

import re
from pathlib import Path

from tests.theory.conftest import CLAIMS
from theory import table
from theory.ledger import book
from theory.ledger.claim import Verdict
from theory.ledger.ids import IDS

ROOT = Path(__file__).parents[2]


def test_the_readme_and_the_ledger_are_current() -> None:
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    told = re.search(
        r"Of (\d+) claims\D+(\d+) hold, (\d+) hold after repair, (\d+) are.*, (\d+) is ill.* and (\d+) can", text
    )
    number = book.counts([{"id": claim.id, "verdict": claim.expected} for claim in CLAIMS.values()])
    assert told is not None
    assert [int(count) for count in told.groups()] == [len(IDS), *(number[verdict] for verdict in Verdict)]
    assert table.LEDGER.read_text(encoding="utf-8") == table.ledger(), f"run: {table.COMMAND}"


def test_the_ledger_has_a_verdict_and_a_sentence_of_evidence_for_every_claim() -> None:
    lines = table.ledger().splitlines()
    assert any(line.startswith(f"Of {len(IDS)} claims") for line in lines)
    for id, claim in CLAIMS.items():
        (line,) = [line for line in lines if line.startswith(f"| [{id}](")]
        *_, verdict, _, sentence, end = line.replace("\\|", "").split("|")
        assert verdict.strip() == claim.expected.replace("_", " ")
        assert sentence.strip().endswith("."), line
        assert len(sentence) > 10
        assert end == ""
        assert (table.LEDGER.parent / line.partition("](")[2].partition(")")[0]).is_file()
    assert "«" not in table.ledger()
