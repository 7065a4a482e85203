"""The paper's paragraph on memory: its gigabytes, and the peaks that the runs recorded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from helene.lab import pages
from helene.lab.store import Record
from llm_bench.estimate import shape_of, step_bytes
from llm_bench.runs.config import from_dict
from llm_bench.tables.execute import Bench
from llm_bench.tables.page import CONTROLS, label
from llm_bench.tables.paper import MEMORY

_PRINTED = {("mezo", "full"): "mezo", ("helene", "full"): "helene", ("zero-shot", "full"): "zero-shot"}
_PRINTED |= {("icl", "full"): "icl", ("ft-adam", "prefix"): "ft-prefix", ("ft-adam", "full"): "ft-full"}


def write(out: Path, bench: Bench, records: Sequence[Record], command: str, provenance: Any) -> Path:
    """Write ``out/llm/table-memory.html``; returns it."""
    peaks: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        config = record.config
        peaks.setdefault((config["model"], config["method"], config["tuning"]), []).append(record)
    rows = []
    for (model, method, tuning), here in sorted(peaks.items()):
        phase = "evaluation" if method in CONTROLS else "step"
        found = [r.result["peak_bytes"][phase] for r in here if (r.result.get("peak_bytes") or {}).get(phase)]
        printed = MEMORY.get(_PRINTED.get((method, tuning), ""))
        expected = None
        if method not in CONTROLS:
            expected = step_bytes(from_dict(here[0].config), shape_of(bench.env.source(model))) / 2**30
        rows.append([model, label(method, tuning), printed, max(found) / 2**30 if found else None, expected])
    measured = [row for row in rows if row[3] is not None]
    said = (
        f"{len(measured)} of {len(rows)} settings have a measured peak."
        if measured
        else "No peak has been measured: only a CUDA device's allocator keeps count."
    )
    headers = ["model", "method", "paper, GB (OPT-1.3B)", "measured peak, GiB", "first guess, GiB"]
    notes = pages.paragraph(
        "The paper says that HELENE takes three times the memory of MeZO; its own numbers are 14 and 4 GB: 3.5 times. "
        "Peaks are of the allocator during steps (evaluation for untrained rows), without gradient checkpointing."
    )
    text = pages.render_page(
        title="Memory",
        answer=said,
        sections=[pages.Section("Peaks", [notes, pages.table(headers, rows)])],
        command=command,
        provenance=provenance,
    )
    return pages.write_text(Path(out) / "llm" / "table-memory.html", text)
