"""What the committed rows say of claims that no paper's text can settle: ``python -m llm_bench.report.claims``.

Writes ``llm_bench/records/claims.jsonl``, which the ledger links from the claims (`theory.sources.measured`).
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from helene.inputs.files import check_apart, write_text
from helene.lab.runs.records import read_once
from helene.lab.runs.store import Record
from llm_bench.report.cell_numbers import OF_A_TABLE, Numbers, check_alike, has_metric, numbers, target_of
from llm_bench.report.compare import TASKS, lead

RECORDS = Path(__file__).parents[1] / "records"
COMMAND = "python -m llm_bench.report.claims"
SPEED = ("SPEED-20x", "SPEED-10x", "SPEED-2x")
#: HELENE's variants by their floor; 1 is the one that Algorithm 1 is run with.
FLOORS = {"0.9": "helene-floor-0.9", "1": "helene", "2": "helene-floor-2", "3": "helene-floor-3"}


MEMORY = {"8-bit": "HELENE, 8-bit state", "bf16": "HELENE, bf16 state", "fp32": "HELENE, fp32 state"}


def main(argv: Sequence[str] | None = None) -> int:
    """Write the file anew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=Path, default=RECORDS, help="folder of the committed records")
    parser.add_argument("--out", type=Path, default=RECORDS / "claims.jsonl")
    arguments = parser.parse_args(argv)
    used = sources(arguments.records)
    for path in used:
        check_apart(arguments.out, path)
    write_text(arguments.out, told(arguments.records))
    return 0


def sources(records: Path) -> list[Path]:
    """The files that answers are read off."""
    rows = records / "rows"
    found = [rows / "small" / "causal-sst2.jsonl", rows / "parts" / "causal-sst2.jsonl"]
    return [*found, *_tables(records), records / "memory-h200.jsonl"]


def _tables(records: Path) -> list[Path]:
    return [path for preset in ("all", "table-3") for path in sorted((records / "rows" / preset).glob("*.jsonl"))]


def told(records: Path) -> str:
    """All lines, from a folder laid out as the committed records are."""
    small, parts, *_, memory = sources(records)
    tables = (read_once([path]) for path in _tables(records))
    return claims(read_once([small])) + floors(read_once([parts])) + pairs(tables) + peaks(read_once([memory]))


def pairs(files: Iterable[Sequence[Record]]) -> str:
    """The lines of TAB-1.5 and TAB-consistent, from test runs of MeZO and HELENE on the same task and tuning.

    Args:
        files: Of one task each. Where two have the same kind, task and tuning, the first counts.

    Raises:
        ValueError: If no file has both methods, or one has their runs of two models or precisions.
    """
    found: dict[tuple[str, str, str], dict[str, Numbers]] = {}
    for records in files:
        here: dict[tuple[str, str, str], dict[str, list[Record]]] = {}
        for r in records:
            if r.config["method"] in ("mezo", "helene") and r.config["role"] == "test":
                cell = here.setdefault((r.config["kind"], r.config["task"], r.config["tuning"]), {})
                cell.setdefault(r.config["method"], []).append(r)
        for key, runs in here.items():
            check_alike((run for of in runs.values() for run in of), OF_A_TABLE, _named(key))
            both = {method: numbers(of) for method, of in runs.items()}
            measured = {method: value for method, value in both.items() if value is not None}
            if len(measured) == 2:
                found.setdefault(key, measured)
    leads = {key: lead(of["helene"], of["mezo"]) for key, of in found.items()}
    if not any(key[2] == "full" for key in leads):
        raise ValueError("no records hold test runs of both mezo and helene by full tuning; run their rows first")
    full = {key: value.points for key, value in leads.items() if key[2] == "full"}
    ordered = [f"{points:+.1f} ({_named(key)})" for key, points in sorted(full.items(), key=lambda one: one[1])]
    others = [f"{_named(key)} {value.points:+.1f}" for key, value in leads.items() if key[2] != "full"]
    mean = f"over {len(full)} tasks with full tuning HELENE − MeZO is {statistics.fmean(full.values()):+.1f} points"
    average = f"{mean} in the mean, from {ordered[0]} to {ordered[-1]}; {', '.join(others)}."
    ahead, sure = sum(v.points > 0 for v in leads.values()), [v for v in leads.values() if v.sure]
    consistent = (
        f"of {len(leads)} pairs of cells HELENE's mean is the higher one in {ahead}, beyond noise in "
        f"{sum(v.points > 0 for v in sure)}; MeZO's is beyond noise in {sum(v.points < 0 for v in sure)}."
    )
    return _line("TAB-1.5", average) + _line("TAB-consistent", consistent)


def _named(key: tuple[str, str, str]) -> str:
    kind, task, tuning = key
    return f"{TASKS.get(task, task)}, {kind}" + ("" if tuning == "full" else f", {tuning}")


def peaks(records: Sequence[Record]) -> str:
    """The lines of MEM-3x and MEM-12x, from peak bytes of steps of OPT-1.3B's shape, 16 x 64 tokens.

    Raises:
        ValueError: If a way to tune is missing.
    """
    held = {r.config["name"]: r.result["peak_bytes"] for r in records if _is_of_opt(r)}
    names = ["MeZO", *MEMORY.values(), "FT Adam, fp32 weights", "FT Adam, bf16 weights"]
    if missing := [name for name in names if held.get(name) is None]:
        raise ValueError(f"the records have no peak of {missing[0]}; measure it first")
    ratio = {name: held[name] / held["MeZO"] for name in names}
    where = "OPT-1.3B's shape, 16 x 64 tokens, MeZO with bf16 weights"
    states = ", ".join(f"{ratio[name]:.1f} with {bits} state" for bits, name in MEMORY.items())
    adam = f"{ratio[names[-2]]:.1f} with fp32 weights, {ratio[names[-1]]:.1f} with bf16 weights"
    return _line("MEM-3x", f"{where}: HELENE takes {states} times its peak.") + _line(
        "MEM-12x", f"{where}: full fine-tuning with Adam takes {adam} times its peak."
    )


def _is_of_opt(record: Record) -> bool:
    return (record.config["model"], record.config["batch"]) == ("opt-1.3b", "16x64")


def _line(claim: str, answer: str) -> str:
    entry = {"claim": claim, "verdict": "outside_hypotheses", "answer": answer, "command": COMMAND}
    return json.dumps(entry, ensure_ascii=False) + "\n"


def claims(records: Sequence[Record]) -> str:
    """A line a claim, from test runs of MeZO and HELENE on one task.

    The verdict is an experiment's: its model and task are not those that the claims name, so it is outside their
    hypotheses whatever it finds.

    Raises:
        ValueError: If one of the two has no test run, or they differ in a setting.
    """
    runs = _test_runs(records, ("mezo", "helene"), "target")
    if any(target_of(run) is None for of in runs.values() for run in of):
        raise ValueError("a test run has no target, so none can be reached; give rows of a task with a dev target")
    mezo, helene = ([target["steps"] for target in map(target_of, of) if target] for of in runs.values())
    config = runs["mezo"][0].config
    where = f"{config['task']} ({config['kind']} {config['model']}, {config['tuning']} tuning)"
    told = f"{_sentence('MeZO', mezo)}, {_sentence('HELENE', helene)}"
    answer = f"on {where}, dev target {config['target']}: {told}."
    return "".join(_line(claim, answer) for claim in SPEED)


def floors(records: Sequence[Record]) -> str:
    """The line of ABL-floor, from test runs of HELENE with several floors.

    Raises:
        ValueError: If a floor has no test run, or they differ in a setting.
    """
    runs = _test_runs(records, FLOORS.values())
    config = runs["helene"][0].config
    told = "; ".join(f"floor {floor}: {_accuracies(runs[method])}" for floor, method in FLOORS.items())
    where = f"{config['task']} ({config['kind']} {config['model']}, {config['tuning']} tuning, {config['steps']} steps)"
    answer = f"on {where}, step sizes tuned, test accuracy in % by seed: {told} († as loaded: no step was better)."
    return _line("ABL-floor", answer)


def _accuracies(runs: Sequence[Record]) -> str:
    """The runs' accuracies, a dash where there is none; a dagger where the model as loaded was the best on dev data."""
    return ", ".join(
        f"{100 * run.result['test']['metric']:.1f}{'' if run.result['best_step'] else '†'}" if has_metric(run) else "–"
        for run in runs
    )


def _test_runs(records: Sequence[Record], methods: Iterable[str], *more: str) -> dict[str, list[Record]]:
    """The test runs of each method by seed, one step size a method, all else the same."""
    runs = {}
    for method in methods:
        here = [r for r in records if (r.config["method"], r.config["role"]) == (method, "test") and not r.failed]
        if not here:
            raise ValueError(f"the records hold no test run of {method}; run its rows first")
        check_alike(here, ("lr",))
        runs[method] = sorted(here, key=lambda run: int(run.config["seed"]))
    every = [run for of in runs.values() for run in of]
    check_alike(every, (*OF_A_TABLE, "kind", "task", "tuning", "steps", *more), f"a claim on {', '.join(runs)}")
    return runs


def _sentence(name: str, steps: Sequence[float]) -> str:
    hits = sum(map(math.isfinite, steps))
    median = statistics.median(steps)
    after = f"a median of {median:.0f} steps" if math.isfinite(median) else "no finite median of steps"
    return f"{name} reaches it in {hits} of {len(steps)} seeds, {after}"


if __name__ == "__main__":
    raise SystemExit(main())
