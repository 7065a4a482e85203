"""Every method on every task of preset `all`, from the committed rows.

``python -m tools.all_tasks`` writes the tables of ``docs/findings/tasks.md``: one for causal and one for masked models,
and one of the cells whose step sizes were tried and whose test runs are open.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from helene.inputs.files import write_text
from helene.lab.runs.records import read_once
from llm_bench.protocol.plan import choose
from llm_bench.report.cell_numbers import OF_A_TABLE, check_alike
from llm_bench.report.compare import TASKS
from llm_bench.report.page_tables import markdown_table, put_between_marks
from llm_bench.tasks import get_task
from llm_bench.tasks.task import Kind
from tools import learned
from tools.learned import ROOT, ROWS, Row

PAGE = ROOT / "docs" / "findings" / "tasks.md"
COMMAND = "python -m tools.all_tasks"
METHODS = {
    "ft-adam": "Adam, by backpropagation",
    "linear-probe": "linear probing",
    "mezo": "MeZO",
    "zo-sgd-mmt": "MeZO with momentum (ZO-SGD-MMT)",
    "zo-adam": "ZO-Adam",
    "helene-backprop": "HELENE, h by backpropagation (Algorithm 2)",
    "icl": "in context",
    "bias-only": "one bias a class",
    "helene-corrected": "HELENE, h corrected for its bias",
    "helene": "HELENE, Algorithm 1",
    "zero-shot": "untrained",
}


def of_kind(found: Sequence[Row], kind: Kind) -> list[Row]:
    """The tasks of a kind of model, those where MeZO learned first, SST-2 of causal models left to its own page."""
    rows = [row for row in found if (row.preset, row.kind) == ("all", kind) and (kind, row.task) != ("causal", "SST-2")]
    return sorted(rows, key=lambda row: not row.learned("mezo"))


def table(rows: Sequence[Row]) -> str:
    """A line a method, a column a task: the mean over seeds and their range. Empty where it is open."""
    lines = [
        [label, *(learned.cell(row, method, missing="") for row in rows)]
        for method, label in METHODS.items()
        if any(method in row.results for row in rows)
    ]
    return markdown_table(["test accuracy", *(row.task for row in rows)], lines)


def open_cells() -> str:
    """Methods whose step sizes were tried on a task of which no test run is there.

    Raises:
        ValueError: If a file holds runs of two models or precisions.
    """
    lines = []
    for path in sorted((ROWS / "all").glob("*.jsonl")):
        kind, _, task = path.stem.partition("-")
        runs = [run for run in read_once([path]) if run.config["tuning"] == "full" and not run.failed]
        check_alike(runs, OF_A_TABLE, path.name)
        for method, label in METHODS.items():
            of_method = [run for run in runs if run.config["method"] == method]
            tried = [run for run in of_method if run.config["role"] == "tune"]
            if not tried or any(run.config["role"] == "test" for run in of_method):
                continue
            chosen = choose(tried).lr
            dev = next((run.result["dev"] for run in tried if run.config["lr"] == chosen), None)
            if dev is None:
                best = "none ended well"
            else:
                best = f"loss {dev['loss']:.3f}" if get_task(task, kind).generates else f"{dev['metric']:.3f}"
            named = f"{TASKS[task]} (masked)" if kind == "masked" else TASKS[task]
            lines.append([named, label, str(len(tried)), best])
    return markdown_table(["task", "method", "step sizes tried", "best on dev"], lines)


def placed(page: str) -> str:
    """The page with its tables."""
    found = learned.rows()
    for kind in ("causal", "masked"):
        page = put_between_marks(page, kind, table(of_kind(found, kind)))
    return put_between_marks(page, "open", open_cells())


def main() -> None:
    """Writes the tables."""
    write_text(PAGE, placed(PAGE.read_text(encoding="utf-8")))
    print(f"written: {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
