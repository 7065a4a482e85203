"""The committed answers to claims of speed and of floors are those of the committed rows."""

from __future__ import annotations

import json

import pytest

from helene.lab.runs.store import Record
from llm_bench.report import claims
from theory.sources.measured import measured


def test_the_committed_file_is_what_the_rows_give() -> None:
    assert (claims.RECORDS / "claims.jsonl").read_text(encoding="utf-8") == claims.told(claims.RECORDS)


def test_pairs_of_cells_are_told_with_their_noise() -> None:
    """Two tasks and one with LoRA: a sure lead of MeZO's, a lead of HELENE's within the noise of its seeds, a tie."""

    def runs(task: str, tuning: str, method: str, values: list[float]) -> list[Record]:
        config = {"kind": "causal", "task": task, "tuning": tuning, "method": method, "role": "test"}
        test = {"auc": None, "option_loss": 1.0, "num_examples": 10_000}
        return [
            Record.of("x", {**config, "seed": i}, {"status": "reached", "test": {**test, "metric": value}})
            for i, value in enumerate(values)
        ]

    one = runs("sst2", "full", "mezo", [0.90, 0.91, 0.90]) + runs("sst2", "full", "helene", [0.60, 0.61, 0.60])
    two = runs("rte", "full", "mezo", [0.50, 0.60, 0.40]) + runs("rte", "full", "helene", [0.60, 0.50, 0.50])
    three = runs("sst2", "lora", "mezo", [0.80]) + runs("sst2", "lora", "helene", [0.80])
    lines = [json.loads(line)["answer"] for line in claims.pairs([one, two, three, one]).splitlines()]
    assert lines == [
        "over 2 tasks with full tuning HELENE − MeZO is -13.3 points in the mean, from -30.0 (SST-2, causal) to +3.3 "
        "(RTE, causal); SST-2, causal, lora +0.0.",
        "of 3 pairs of cells HELENE's mean is the higher one in 1, beyond noise in 0; MeZO's is beyond noise in 1.",
    ]
    with pytest.raises(ValueError, match="of both mezo and helene"):
        claims.pairs([one[:3]])
    assert "Measured here: over" in measured("TAB-1.5")
    assert "Measured here: of" in measured("TAB-consistent")


def test_peaks_are_told_as_ratios() -> None:
    held = {"MeZO": 2, "HELENE, 8-bit state": 3, "HELENE, bf16 state": 4, "HELENE, fp32 state": 8}
    held |= {"FT Adam, fp32 weights": 20, "FT Adam, bf16 weights": 10}

    def records(names: dict[str, int]) -> list[Record]:
        config = {"model": "opt-1.3b", "batch": "16x64"}
        return [Record.of("x", {**config, "name": n}, {"status": "reached", "peak_bytes": b}) for n, b in names.items()]

    three, twelve = (json.loads(line)["answer"] for line in claims.peaks(records(held)).splitlines())
    assert "takes 1.5 with 8-bit state, 2.0 with bf16 state, 4.0 with fp32 state times" in three
    assert "takes 10.0 with fp32 weights, 5.0 with bf16 weights times" in twelve
    with pytest.raises(ValueError, match="no peak of HELENE, bf16 state"):
        claims.peaks(records({n: b for n, b in held.items() if "bf16 state" not in n}))
    assert "Measured here" in measured("MEM-3x")


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
    without = lines[3].replace('"target": {"steps": {"$float": "inf"}}', '"target": null')
    with pytest.raises(ValueError, match="a test run has no target"):
        claims.claims([*lines[:3], without])
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
    lost = json.loads(lines[1])
    lost["config"]["seed"], lost["result"] = 2, {"status": "non_finite", "best_step": 0}
    assert "50.0, –;" in json.loads(claims.floors([json.dumps(lost), *lines]))["answer"]
    with pytest.raises(ValueError, match="no test run of helene-floor-3"):
        claims.floors(lines[:-1])
    assert "floor 0.9" in measured("ABL-floor")


def test_a_file_without_test_metrics_hides_no_other_and_lora_alone_is_one_line() -> None:
    def runs(method: str, metric: float | None, tuning: str = "full") -> list[Record]:
        config = {"kind": "causal", "task": "sst2", "tuning": tuning, "method": method, "role": "test"}
        test = {"auc": None, "option_loss": 1.0, "num_examples": 100, "metric": metric}
        result = {"status": "non_finite"} if metric is None else {"status": "reached", "test": test}
        return [Record.of("x", {**config, "seed": seed}, result) for seed in (0, 1)]

    lost, both = runs("mezo", 0.9) + runs("helene", None), runs("mezo", 0.9) + runs("helene", 0.8)
    assert claims.pairs([lost, both]) == claims.pairs([both])
    with pytest.raises(ValueError, match="by full tuning"):
        claims.pairs([runs("mezo", 0.9, "lora") + runs("helene", 0.8, "lora")])
