"""What the committed rows say of claims that no paper's text can settle: ``python -m llm_bench.claims``.

Writes ``llm_bench/records/claims.jsonl``, which the ledger links from the claims (`theory.sources.measured`).
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from helene.inputs.files import check_apart, write_text

RECORDS = Path(__file__).parent / "records"
COMMAND = "python -m llm_bench.claims"
SPEED = ("SPEED-20x", "SPEED-10x", "SPEED-2x")
#: HELENE's variants by their floor; 1 is the one that Algorithm 1 is run with.
FLOORS = {"0.9": "helene-floor-0.9", "1": "helene", "2": "helene-floor-2", "3": "helene-floor-3"}


def main(argv: Sequence[str] | None = None) -> int:
    """Write the file anew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=Path, default=RECORDS / "rows" / "small/causal-sst2.jsonl")
    parser.add_argument("--out", type=Path, default=RECORDS / "claims.jsonl")
    parser.add_argument("--parts", type=Path, default=RECORDS / "rows" / "parts/causal-sst2.jsonl")
    arguments = parser.parse_args(argv)
    check_apart(arguments.out, arguments.rows)
    check_apart(arguments.out, arguments.parts)
    rows, parts = (path.read_text(encoding="utf-8").splitlines() for path in (arguments.rows, arguments.parts))
    write_text(arguments.out, claims(rows) + floors(parts))
    return 0


def claims(lines: Sequence[str]) -> str:
    """A line a claim, from exported records of test runs of MeZO and HELENE on one task.

    The verdict is an experiment's: its model and task are not those that the claims name, so it is outside their
    hypotheses whatever it finds.

    Raises:
        ValueError: If one of the two has no test run.
    """
    records = [json.loads(line) for line in lines]
    runs = {method: _test_runs(records, method) for method in ("mezo", "helene")}
    found = {method: _steps(tests) for method, tests in runs.items()}
    config = runs["mezo"][0]["config"]
    where = f"{config['task']} ({config['kind']} {config['model']}, {config['tuning']} tuning)"
    told = f"{_sentence('MeZO', found['mezo'])}, {_sentence('HELENE', found['helene'])}"
    answer = f"on {where}, dev target {config['target']}: {told}."
    entry = {"verdict": "outside_hypotheses", "answer": answer, "command": COMMAND}
    return "".join(json.dumps({"claim": claim, **entry}) + "\n" for claim in SPEED)


def floors(lines: Sequence[str]) -> str:
    """The line of ABL-floor, from exported records of test runs of HELENE with several floors.

    Raises:
        ValueError: If a floor has no test run.
    """
    records = [json.loads(line) for line in lines]
    runs = {floor: _test_runs(records, method) for floor, method in FLOORS.items()}
    config = runs["1"][0]["config"]
    told = "; ".join(f"floor {floor}: {_accuracies(tests)}" for floor, tests in runs.items())
    where = f"{config['task']} ({config['kind']} {config['model']}, {config['tuning']} tuning, {config['steps']} steps)"
    answer = f"on {where}, step sizes tuned, test accuracy in % by seed: {told} († as loaded: no step was better)."
    entry = {"claim": "ABL-floor", "verdict": "outside_hypotheses", "answer": answer, "command": COMMAND}
    return json.dumps(entry, ensure_ascii=False) + "\n"


def _accuracies(runs: Sequence[dict[str, Any]]) -> str:
    """The runs' accuracies; with a dagger where the model as loaded was the best on dev data."""
    told = [(100 * run["result"]["test"]["metric"], run["result"]["best_step"]) for run in sorted(runs, key=_seed)]
    return ", ".join(f"{accuracy:.1f}{'' if best_step else '†'}" for accuracy, best_step in told)


def _seed(run: dict[str, Any]) -> int:
    return int(run["config"]["seed"])


def _test_runs(records: Sequence[dict[str, Any]], method: str) -> list[dict[str, Any]]:
    runs = [r for r in records if "config" in r and r["config"]["method"] == method and r["config"]["role"] == "test"]
    if not runs:
        raise ValueError(f"the records hold no test run of {method}; run its rows first")
    return runs


def _steps(runs: Sequence[dict[str, Any]]) -> list[float]:
    steps = [run["result"]["target"]["steps"] for run in runs]
    return [s if isinstance(s, int) else math.inf for s in steps]


def _sentence(name: str, steps: Sequence[float]) -> str:
    hits = sum(map(math.isfinite, steps))
    median = statistics.median(steps)
    after = f"a median of {median:.0f} steps" if math.isfinite(median) else "no finite median of steps"
    return f"{name} reaches it in {hits} of {len(steps)} seeds, {after}"


if __name__ == "__main__":
    raise SystemExit(main())
