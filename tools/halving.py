"""Whether successive halving would choose the step sizes that whole runs chose, from the committed rows.

``python -m tools.halving`` prints a line a cell, and the counts that docs/findings/language_models.md tells.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from helene.lab.runs.records import read_once
from llm_bench.protocol.presets import get_preset
from llm_bench.report.cell_numbers import OF_A_TABLE, check_alike

ROWS = Path(__file__).parents[1] / "llm_bench" / "records" / "rows" / "all"
CUTS = (500, 1000)  # steps after which the better half goes on


class Cell(NamedTuple):
    """A method on a task, with the step size that it has by whole runs and by halving."""

    task: str
    method: str
    whole: float
    halved: float


def cells() -> list[Cell]:
    """All cells of preset ``all`` that tune all parameters, with a whole grid, runs past the cuts, and a dev metric.

    Raises:
        ValueError: If a file holds tuning runs of two models or precisions.
    """
    found, least = [], len(get_preset("all").multiples)
    for path in sorted(ROWS.glob("*.jsonl")):
        curves: dict[str, dict[float, Mapping[str, Any]]] = {}
        runs = [run for run in read_once([path]) if (run.config["role"], run.config["tuning"]) == ("tune", "full")]
        check_alike(runs, OF_A_TABLE, path.name)
        for run in runs:
            dev = run.result.get("dev") or {}  # none of a run that failed
            if run.config["steps"] > max(CUTS) and dev.get("metric") is not None:
                curves.setdefault(run.config["method"], {})[run.config["lr"]] = run.result["curve"]
        for method, of in curves.items():
            if len(of) < least:
                continue
            left = list(of)
            for cut in CUTS:
                left = ranked(of, left, cut)[: math.ceil(len(left) / 2)]
            found.append(Cell(path.stem, method, ranked(of, list(of))[0], ranked(of, left)[0]))
    return found


def ranked(curves: Mapping[float, Mapping[str, Any]], sizes: Sequence[float], steps: float = math.inf) -> list[float]:
    """Step sizes by the best dev metric within so many steps, of equal ones by the loss there; the best first."""

    def best(lr: float) -> tuple[float, float]:
        curve = curves[lr]
        looks = zip(curve["step"], curve["dev_metric"], curve["dev_loss"], strict=True)
        return max((metric, -loss) for step, metric, loss in looks if step <= steps)

    return sorted(sizes, key=best, reverse=True)


def counts(found: Sequence[Cell]) -> dict[str, tuple[int, int]]:
    """By method: cells in which both choose the same, and all of them."""
    same = Counter(cell.method for cell in found if cell.whole == cell.halved)
    return {method: (same[method], number) for method, number in Counter(cell.method for cell in found).items()}


def main() -> None:
    """Prints what was found."""
    found = cells()
    for cell in found:
        print(f"{cell.task:14} {cell.method:10} {cell.whole:9.3g} {cell.halved:9.3g}")
    for method, (same, number) in counts(found).items():
        print(f"{method}: the same in {same} of {number}")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
