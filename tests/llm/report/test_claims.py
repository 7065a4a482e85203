"""The committed answers to claims of speed and of floors are those of the committed rows."""

from __future__ import annotations

import json

import pytest

from llm_bench import claims
from theory.sources.measured import measured


def test_the_committed_file_is_what_the_rows_give() -> None:
    rows, parts = (
        (claims.RECORDS / "rows" / f"{name}/causal-sst2.jsonl").read_text(encoding="utf-8").splitlines()
        for name in ("small", "parts")
    )
    committed = (claims.RECORDS / "claims.jsonl").read_text(encoding="utf-8")
    assert committed == claims.claims(rows) + claims.floors(parts)


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


def test_accuracies_of_floors_stand_by_seed_with_a_dagger_where_nothing_was_learnt() -> None:
    def run(method: str, seed: int, best_step: int, accuracy: float) -> str:
        config = {"method": method, "role": "test", "seed": seed, "task": "t", "kind": "causal", "model": "m"}
        config |= {"tuning": "full", "steps": 500}
        result = {"best_step": best_step, "test": {"metric": accuracy}}
        return json.dumps({"config": config, "result": result})

    lines = [run(method, 0, 100, 0.5) for method in claims.FLOORS.values()]
    answer = json.loads(claims.floors([run("helene", 1, 0, 0.75), *lines]))["answer"]
    assert "floor 1: 50.0, 75.0†;" in answer
    with pytest.raises(ValueError, match="no test run of helene-floor-3"):
        claims.floors(lines[:-1])
    assert "floor 0.9" in measured("ABL-floor")
