"""The foot of every page: downloads, how to find a record and to cite, where it was measured and drawn."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from helene.lab.report.report_files import write_file, write_report_text
from helene.lab.runs.records import Record

FIND_RECORD = "helene records show ID"
CITATION = """\
@software{helene_suite,
  title  = {HELENE, measured: zeroth-order optimizers for PyTorch and the evidence about the claims
            of the HELENE paper},
  author = {{The HELENE suite authors}},
  year   = {2026}
}
@misc{zhao2024helene,
  title  = {HELENE: Hessian Layer-wise Clipping and Gradient Annealing for Accelerating Fine-Tuning
            LLM with Zeroth-Order Optimization},
  author = {Zhao, Huaqin and Li, Jiaxi and Pan, Yi and Liang, Shizhe and Yang, Xiaofeng
            and Liu, Wei and Li, Xiang and Dou, Fei and Liu, Tianming and Lu, Jin},
  year   = {2024},
  eprint = {2411.10696},
  archivePrefix = {arXiv}
}"""


def measured_on(records: Iterable[Record]) -> str:
    """The GPUs or else processors that made the records, with the first and the last day."""
    facts = [record.provenance for record in records if record.provenance]
    names = sorted({name for fact in facts for name in fact.get("gpu") or [fact.get("cpu") or "an unknown processor"]})
    days = sorted({str(fact["timestamp"])[:10] for fact in facts if fact.get("timestamp")})
    when = days[0] + (f" to {days[-1]}" if days[-1] != days[0] else "") if days else ""
    return ", ".join([*names, *([when] if when else [])])


def write_rows(base: Path, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[tuple[str, str]]:
    """Write ``base.csv``, and ``base.parquet`` where pyarrow is installed; returns (label, file name) of each.

    Raises:
        ValueError: If a file cannot be written.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    made = [("CSV", write_report_text(Path(f"{base}.csv"), text.getvalue()).name)]
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:  # nothing else needs it
        return made
    table = pyarrow.table({name: [row[i] for row in rows] for i, name in enumerate(columns)})
    path = write_file(Path(f"{base}.parquet"), lambda partial: parquet.write_table(table, partial))
    return [*made, ("Parquet", path.name)]


def facts(provenance: Mapping[str, Any] | None, command: str, measured: str) -> list[tuple[str, str]]:
    """The lines of the foot: where it was measured, where and with what it was drawn."""
    lines = [("measured on", measured)] if measured else []
    p = dict(provenance or {})
    commit, dirty = p.pop("commit", None), p.pop("dirty", None)
    if p.get("command") == command:
        p.pop("command")  # it stands above already
    where = [text for name in ("cpu", "gpu") for _, text in _fact(name, p.pop(name, None))]
    lines += [("drawn on", ", ".join(where))] if where else []
    lines += [("run started", value) for _, value in _fact("timestamp", p.pop("timestamp", None))]
    lines += [("commit", f"{commit[:12]}{' with uncommitted changes' if dirty else ''}")] if commit else []
    for name in ("command", "cpus", "threads", "platform", "versions"):
        lines += _fact(name, p.pop(name, None))
    for name, value in p.items():
        lines += _fact(name, value)
    return lines


def _fact(name: str, value: Any) -> list[tuple[str, str]]:
    if isinstance(value, Mapping):
        value = ", ".join(f"{key} {item}" for key, item in value.items())
    elif isinstance(value, list | tuple):
        value = ", ".join(map(str, value))
    return [] if value in (None, "") else [(name, str(value))]
