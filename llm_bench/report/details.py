"""What stands behind each number of a table: the grid of step sizes, seeds, records, config and command."""

from __future__ import annotations

from markupsafe import Markup

from helene.lab.report import pages
from helene.lab.runs.store import Record
from llm_bench.protocol.execute import CellRecords
from llm_bench.protocol.plan import choose
from llm_bench.report.compare import CONTROLS, task_name
from llm_bench.report.labels import anchor, label, step_size
from llm_bench.report.ranked import Table
from llm_bench.report.tables import ended
from llm_bench.runs.config import from_dict, to_toml


def cells_section(table: Table) -> pages.Section:
    """The cells that have runs, those under way too."""
    body: list[Markup | str] = [
        pages.paragraph(
            "Step sizes were chosen on dev with a seed of their own. The preset gives every method the same number of "
            "them, and some more where the best one lies at an end; a cell under way has fewer. Test rows were looked "
            "at once, by the runs below."
        )
    ]
    for cell, (what, _) in table.items():
        title = f"{label(cell.method, cell.tuning)} on {task_name(cell.kind, cell.task)}"
        inside = [*_tuning_part(what), *_tests_part(what), *_failed_part(what)]
        if inside:
            body.append(pages.details(title, inside, anchor(cell)))
    return pages.Section("Runs of each cell", body, "cells")


def _tuning_part(what: CellRecords) -> list[Markup | str]:
    if not what.tried:
        return []
    tried = [[step_size(lr), metric, loss, ended(status)] for lr, metric, loss, status in choose(what.tried).tried]
    made = sum(record.result.get("forwards") or 0 for record in what.tuning)
    open_still = " No test run is there yet." if what.left and not what.tests else ""
    return [
        pages.table(["step size", "dev metric", "dev loss", "ended"], tried, numeric=range(3)),
        pages.paragraph(f"{len(tried)} step sizes, {pages.number(made)} forwards of tuning.{open_still}"),
    ]


def _tests_part(what: CellRecords) -> list[Markup | str]:
    if not what.tests:
        return []
    seeds = [
        [
            r.config["seed"],
            r.config["data_seed"],
            100 * r.result["test"]["metric"] if r.result.get("test") else None,
            r.result.get("best_step"),
            None if _makes_no_steps(r) else ended(r.result["status"]),
            r.key,
        ]
        for r in what.tests
    ]
    return [
        pages.table(["seed of z", "seed of data", "test", "best step", "ended", "record"], seeds),
        pages.paragraph("Config of the first run (`helene llm run --config FILE`):"),
        pages.code_block(to_toml(from_dict(what.tests[0].config))),
    ]


def _makes_no_steps(run: Record) -> bool:
    return run.config["method"] in CONTROLS and run.result["status"] == "out_of_budget"


def _failed_part(what: CellRecords) -> list[Markup | str]:
    if not what.failed:
        return []
    rows = [[r.config["seed"], step_size(r.config.get("lr")), r.result.get("message"), r.key] for r in what.failed]
    return [pages.table(["seed of z", "step size", "failed with", "record"], rows)]
