"""What tests of pages read: committed records, and the tables of pages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from helene.lab.runs.records import read_jsonl
from helene.lab.runs.store import Record
from llm_bench.protocol.plan import Cell, test_seeds
from llm_bench.protocol.presets import get_preset

ROOT = Path(__file__).parents[2]


LLM = ROOT / "llm_bench" / "records"


ENGINES = [f"engine/h200{size}" for size in ("", "-2.7b", "-6.7b", "-13b")]  # of the shapes, in their order


FAMILIES = {  # of the page on scaling: the series of its records, without the method
    "quadratics": "quadratic-coordinate",
    "quadratics, d to 4,096": "large-coordinate",
    "ill-conditioned quadratics": "ill_conditioned-coordinate",
    "low-rank quadratics": "low_rank-coordinate",
    "quadratics, unlike layers": "heterogeneous-layer_gap",
    "coupled layers": "coupled_half-coordinate",
    "strongly coupled layers": "coupled_strong-coordinate",
    "log-cosh": "log_cosh-coordinate",
    "log-cosh, one wide layer": "one_wide-coordinate",
    "log-cosh, unlike layers": "heterogeneous_log_cosh-layer_gap",
    "log-cosh, one function in four partitions": "relabelled-coordinate",
    "softplus": "softplus-coordinate",
    "quartic": "quartic-coordinate",
    "digits, real data": "digits-coordinate",
    "softmax regression, real data": "softmax-coordinate",
    "breast cancer, real data": "breast_cancer-coordinate",
}


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def words(page: str) -> str:
    """A page's text on one line."""
    return " ".join((ROOT / page).read_text(encoding="utf-8").split())


def table(page: str, head: str) -> list[list[str]]:
    """The rows of the table whose head starts so."""
    text = (ROOT / page).read_text(encoding="utf-8")
    lines = text[text.index(head) :].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in (lines[0], *lines[2:])]


def milliseconds(file: str, length: int = 64) -> dict[str, list[float]]:
    """Median and quartiles of a step of each contestant in an engine's records, at 16 x ``length`` tokens."""
    wanted = {"part": "alone" if file in ENGINES[2:] else "table", "length": length}
    return {
        r["config"]["contestant"]: [1e3 * r["result"][f"{part}_seconds"] for part in ("median", "p25", "p75")]
        for r in records(LLM / f"{file}.jsonl")
        if "config" in r and wanted.items() <= r["config"].items()
    }


def accuracies(file: str, method: str) -> list[float]:
    """Of the test runs, by seed, and by data seed where that differs."""
    runs = [r for r in records(LLM / "rows" / f"{file}.jsonl") if r.get("config", {}).get("method") == method]
    tests = [r for r in runs if r["config"]["role"] == "test"]
    by_seed = sorted(tests, key=lambda r: (r["config"]["seed"], r["config"]["data_seed"]))
    return [r["result"]["test"]["metric"] for r in by_seed]


def full_runs(file: str, method: str, role: str) -> list[Record]:
    """Of all parameters, by seed; of test runs as many as are planned."""
    preset, _, stem = file.partition("/")
    found = read_jsonl(LLM / "rows" / f"{file}.jsonl")
    some = [r for r in found if (r.config["method"], r.config["role"], r.config["tuning"]) == (method, role, "full")]
    kind, _, task = stem.partition("-")
    planned = test_seeds(get_preset(preset), Cell(kind, task, method, "full"))
    return [r for r in sorted(some, key=lambda r: r.config["seed"]) if role == "tune" or r.config["seed"] in planned]


def share_above_floor(run: Record) -> float:
    """Of all coordinates, at the end of a run."""
    layers = run.result["optimizer"]["layers"]
    above = sum(layer["dimension"] * layer["share_above_floor"] for layer in layers)
    return float(above / sum(layer["dimension"] for layer in layers))
