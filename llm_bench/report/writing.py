"""A page of runs with its files: HTML, the cells as JSON, the runs as CSV and Parquet; then the part's main page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from helene.lab.report import page_footer, pages
from helene.lab.runs import canonical
from helene.lab.runs.provenance import provenance
from llm_bench.report import overview
from llm_bench.report.labels import label
from llm_bench.report.ranked import Table, model_name, shared_data
from llm_bench.report.tables import answer

_ASKED = ("kind", "task", "model", "method", "tuning", "lr", "seed", "data_seed")
_RUNS = ("record", *_ASKED, "status", "metric", "best_step", "training_seconds", "step_bytes")


def render(
    folder: Path,
    name: str,
    *,
    title: str,
    table: Table,
    sections: Sequence[pages.Section],
    command: str,
    back: str,
    said: str = "",
) -> tuple[str, dict[str, Any]]:
    """The page and its summary; the runs are written beside it. Its answer is ``said``, by default `answer`'s."""
    said, runs = said or answer(table), [record for what, _ in table.values() for record in what.tests]
    files = page_footer.write_rows(folder / f"{name}-runs", _RUNS, [_run(record) for record in runs])
    seeds = shared_data(table)
    text = pages.render_page(
        title=title,
        answer=said,
        sections=sections,
        command=command,
        provenance=provenance(command),
        lead=[pages.paragraph(seeds)] if seeds else [],
        back=back,
        downloads=[*files, ("JSON", f"{name}.json")],
        measured=page_footer.measured_on(runs),
    )
    return text, {"title": title, "answer": said, "command": command, "seeds": seeds, "cells": plain(table)}


def write(
    out: Path,
    name: str,
    *,
    title: str,
    table: Table,
    sections: Sequence[pages.Section],
    command: str,
    said: str = "",
) -> Path:
    """Write ``out/llm/NAME.html`` with its files, the part's main page and the index; returns the page."""
    text, summary = render(
        out / "llm",
        name,
        title=title,
        table=table,
        sections=sections,
        command=command,
        back="../index.html",
        said=said,
    )
    return write_leaf(out, name, text, **summary)


def write_leaf(out: Path, name: str, text: str, **summary: Any) -> Path:
    """Write a page and its JSON, by which the main pages find it, and these; returns the page."""
    folder = Path(out) / "llm"
    pages.write_report_text(folder / f"{name}.json", canonical.dumps(summary, indent=1) + "\n")
    page = pages.write_report_text(folder / f"{name}.html", text)
    overview.write(Path(out))
    return page


def _run(record: Any) -> list[Any]:
    config, result = record.config, record.result
    metric = (result.get("test") or {}).get("metric")
    more = [result.get("best_step"), result.get("training_seconds"), (result.get("peak_bytes") or {}).get("step")]
    return [record.key, *(config.get(name) for name in _ASKED), result["status"], metric, *more]


def plain(table: Table) -> list[dict[str, Any]]:
    """The cells as plain values."""
    rows = []
    for cell, (what, found) in table.items():
        row: dict[str, Any] = {"kind": cell.kind, "task": cell.task, "method": cell.method, "tuning": cell.tuning}
        row |= {"label": label(cell.method, cell.tuning), "wanted": what.wanted}
        row |= {"lr": what.choice.lr if what.choice else None, "runs_left": what.left}
        if found is not None:
            row |= {
                "steps": what.tests[0].config["steps"],
                "mean": found.mean,
                "interval": [found.low, found.high],
                "values": list(found.values),
                "test_rows": found.test_rows,
                "target": found.target,
                "steps_to_target": found.steps,
                "forwards_to_target": found.forwards,
                "seconds_to_target": found.seconds,
                "training_seconds": found.training_seconds,
                "step_bytes": found.bytes,
                "model": model_name(what.tests[0].config),
                "parameters": (what.tests[0].result.get("parameters") or {}).get("all"),
                "finite": found.steps is not None and math.isfinite(found.steps),
            }
        rows.append(row)
    return rows
