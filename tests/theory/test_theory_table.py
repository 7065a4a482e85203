"""The README's table of verdicts is what the modules expect and answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.theory.conftest import CLAIMS
from theory import table
from theory.ledger.ids import IDS

ROOT = Path(__file__).parents[2]


def test_the_readme_shows_the_table() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text == table.placed(text, table.markdown()), "run: python -m theory.table --write README.md"


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
