"""The committed answers to claims of speed and of floors are those of the committed rows."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

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


def run(method: str, seed: int = 0, *, of: dict[str, Any] | None = None, **result: Any) -> Record:
    config = {"method": method, "role": "test", "seed": seed, "task": "t", "kind": "causal", "model": "m"}
    config |= {"tuning": "full", "steps": 500, "target": 0.8, "lr": 1e-6, **(of or {})}
    return Record.of("x", config, {"status": "out_of_budget", **result})


def reached(method: str, seed: int, after: float, **of: Any) -> Record:
    return run(method, seed, of=of, target={"steps": after})


def test_a_miss_counts_as_infinity_and_the_ledger_shows_it() -> None:
    runs = [reached("mezo", seed, steps) for seed, steps in enumerate((500, 700, math.inf))]
    runs.append(Record.of("x", run("helene").config, {"status": "out_of_memory", "message": "m"}))
    answer = json.loads(claims.claims(runs).splitlines()[0])["answer"]
    assert "MeZO reaches it in 2 of 3 seeds, a median of 700 steps" in answer
    assert "HELENE reaches it in 0 of 1 seeds, no finite median" in answer
    with pytest.raises(ValueError, match="no test run of helene"):
        claims.claims(runs[:3])
    with pytest.raises(ValueError, match="a test run has no target"):
        claims.claims([run(method, of={"target": None}, target=None) for method in ("mezo", "helene")])
    failed = Record.of("x", {**runs[0].config, "seed": 9}, {"status": "error", "message": "m"})
    assert claims.claims([*runs, failed]) == claims.claims(runs), "a run that failed counts as missing"
    assert "outside_hypotheses" in measured("SPEED-20x")


def test_a_claim_mixes_no_settings() -> None:
    runs = [reached("mezo", 0, 500), reached("helene", 0, 500)]
    for name, value in (("model", "n"), ("fingerprint", "f"), ("dtype", "bfloat16"), ("steps", 9), ("target", 0.9)):
        with pytest.raises(ValueError, match=f"2 values of {name}"):
            claims.claims([runs[0], reached("helene", 0, 500, **{name: value})])
    with pytest.raises(ValueError, match=r"mezo on t .causal. has runs of 2 values of lr"):
        claims.claims([*runs, reached("mezo", 1, 500, lr=1.0)])
    assert claims.claims([runs[0], reached("helene", 0, 500, lr=1.0)]), "each method has its own step size"
    of_floors = [run(method, best_step=1, test={"metric": 0.5}) for method in claims.FLOORS.values()]
    with pytest.raises(ValueError, match="2 values of model"):
        claims.floors([*of_floors, run("helene", 1, of={"model": "n"}, best_step=1, test={"metric": 0.5})])
    test = {"metric": 0.5, "auc": None, "option_loss": 1.0}
    with pytest.raises(ValueError, match="2 values of model"):
        claims.pairs([[run("mezo", test=test), run("helene", of={"model": "n"}, test=test)]])


def test_a_record_that_a_file_holds_twice_counts_once(tmp_path: Path) -> None:
    shutil.copytree(claims.RECORDS, tmp_path, dirs_exist_ok=True)
    for path in claims.sources(tmp_path):
        path.write_text(2 * path.read_text(encoding="utf-8"), encoding="utf-8")
    assert claims.told(tmp_path) == claims.told(claims.RECORDS)


def test_accuracies_of_floors_stand_by_seed_with_a_dagger_where_nothing_was_learnt() -> None:
    runs = [run(method, best_step=100, test={"metric": 0.5}) for method in claims.FLOORS.values()]
    unlearnt = run("helene", 1, best_step=0, test={"metric": 0.75})
    assert "floor 1: 50.0, 75.0†;" in json.loads(claims.floors([unlearnt, *runs]))["answer"]
    lost = run("helene", 2, best_step=0)
    assert "50.0, –;" in json.loads(claims.floors([lost, *runs]))["answer"]
    with pytest.raises(ValueError, match="no test run of helene-floor-3"):
        claims.floors(runs[:-1])
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
