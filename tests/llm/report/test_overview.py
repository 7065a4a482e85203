"""Which page's rows stand for a task on the home page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from llm_bench.protocol.presets import SECOND_MODEL
from llm_bench.report import overview


def page(folder: Path, name: str, *cells: tuple[str, int | None, list[float]]) -> None:
    rows: list[dict[str, Any]] = [
        {"kind": "causal", "task": "sst2", "method": method, "tuning": "full", "steps": steps, "values": values}
        for method, steps, values in cells
    ]
    (folder / f"table-{name}.json").write_text(json.dumps({"cells": rows}), encoding="utf-8")


def test_longer_runs_come_before_more_of_them(tmp_path):
    """Then more runs, then more rows; a control's runs count for nothing."""
    page(tmp_path, "short", *((m, 500, [80.0] * 3) for m in ("mezo", "helene", "zo-adam")))
    page(tmp_path, "few", ("mezo", 2000, [90.0]), ("icl", None, [80.0] * 9))
    assert [row["values"] for row in overview.task_rows(tmp_path)] == [[90.0], [80.0] * 9]
    page(tmp_path, "more", ("mezo", 2000, [91.0, 92.0]))
    assert [row["values"] for row in overview.task_rows(tmp_path)] == [[91.0, 92.0]]
    page(tmp_path, "rows", ("mezo", 2000, [93.0, 94.0]), ("zero-shot", None, [50.0]))
    assert len(overview.task_rows(tmp_path)) == 2


def test_a_second_models_rows_count_where_no_others_are(tmp_path):
    page(tmp_path, f"2-{SECOND_MODEL}", ("mezo", 2000, [70.0] * 3), ("helene", 2000, [60.0] * 3))
    assert [row["values"] for row in overview.task_rows(tmp_path)] == [[70.0] * 3, [60.0] * 3]
    page(tmp_path, "2-small", ("mezo", 500, [80.0]))
    assert [row["values"] for row in overview.task_rows(tmp_path)] == [[80.0]]
