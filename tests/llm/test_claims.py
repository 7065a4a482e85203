"""The committed answers to claims of speed are those of the committed rows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llm_bench import claims
from llm_bench.protocol.paper_tables import TABLES
from theory.sources import paper_numbers
from theory.sources.measured import measured


def test_the_committed_file_is_what_the_rows_give() -> None:
    rows = (claims.RECORDS / "rows" / "small-causal-sst2.jsonl").read_text(encoding="utf-8").splitlines()
    assert (claims.RECORDS / "claims.jsonl").read_text(encoding="utf-8") == claims.claims(rows)


def test_a_miss_counts_as_infinity_and_the_ledger_shows_it() -> None:
    def run(method: str, steps: object) -> str:
        config = {
            "method": method,
            "role": "test",
            "task": "t",
            "kind": "causal",
            "model": "m",
            "tuning": "full",
            "target": 0.8,
        }
        return json.dumps({"config": config, "result": {"target": {"steps": steps}}})

    missed = {"$float": "inf"}
    lines = [run("mezo", 500), run("mezo", 700), run("mezo", missed), run("helene", missed)]
    answer = json.loads(claims.claims(lines).splitlines()[0])["answer"]
    assert "MeZO reaches it in 2 of 3 seeds, a median of 700 steps" in answer
    assert "HELENE reaches it in 0 of 1 seeds, no finite median" in answer
    with pytest.raises(ValueError, match="no test run of helene"):
        claims.claims(lines[:3])
    assert "outside_hypotheses" in measured("SPEED-20x")


@pytest.mark.parametrize(("name", "printed"), [("1", paper_numbers.ROBERTA), ("2", paper_numbers.OPT)])
def test_the_papers_tables_are_the_same_here_and_in_the_theory(name: str, printed: dict[str, dict[str, Any]]) -> None:
    methods = {"zero-shot": "zero-shot", "LP": "linear-probe", "ICL": "icl"}
    methods |= {"Adam": "ft-adam", "MeZO": "mezo", "HELENE": "helene"}
    table, compared = TABLES[name], 0
    for row, cells in printed.items():
        method, _, tuning = row.partition(" ")
        for column, cell in zip(table.columns, cells.values(), strict=True):
            here = table.printed[(methods[method], {"": "full", "FT": "full"}.get(tuning, tuning.lower())), column]
            assert here == (float(cell.value), None if cell.deviation is None else float(cell.deviation))
            compared += 1
    assert compared == len(table.printed)
