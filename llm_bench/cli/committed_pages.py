"""The committed rows as pages, drawn without a GPU, models or data."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from helene.cli import main as helene
from helene.inputs.files import write_whole
from helene.lab.runs.records import Record
from helene.lab.runs.store import Store, StoreError
from llm_bench.protocol.execute import experiment
from llm_bench.protocol.paper_tables import TABLES
from llm_bench.protocol.presets import PRESETS
from llm_bench.report.figures import FIGURES, OWN
from llm_bench.runs.config import UNTRAINED

RECORDS = Path(__file__).parents[1] / "records"


def draw_all(out: Path) -> int:
    """Put the records into one store and draw every page that they make; returns 1 where one cannot be drawn.

    Args:
        out: Folder of the reports.

    Raises:
        StoreError: If there are no records, as in a wheel, or two files have different results of one run.
        OSError: If nothing can be written.
    """
    path = out / "llm" / "committed.sqlite"
    write_store(path)
    with Store(path, read_only=True) as store:
        pages = [page for preset in PRESETS for page in pages_of(preset, store.records(experiment(preset)))]
    failed = 0
    for what, which, preset in (*pages, ("table", "memory", "small")):
        words = ["llm", what, which, "--preset", preset, "--draw-only", "--store", str(path), "--out", str(out)]
        failed += helene(words) != 0
    return int(failed > 0)


def pages_of(preset: str, records: Sequence[Record]) -> list[tuple[str, str, str]]:
    """The pages that a preset's records make: what, which, preset.

    A table needs the untrained model and a trained row on one of its tasks, and rows that no others show; a
    figure, a test run of a method that it is about, and that no other shows all its methods and more.
    """
    tested = [r.config for r in records if r.config["role"] == "test" and not r.failed]
    bare = {(c["kind"], c["task"]) for c in tested if c["method"] == "zero-shot"}
    trained = {(c["method"], c["tuning"], c["kind"], c["task"]) for c in tested if c["method"] not in UNTRAINED}
    shown = {
        name: {row for row in trained if row[:2] in table.rows and row[2:] in table.columns and row[2:] in bare}
        for name, table in TABLES.items()
    }
    for name in reversed(TABLES):
        if shown[name] <= set().union(*(rows for other, rows in shown.items() if other != name)):
            del shown[name]
    tables = [("table", name, preset) for name in TABLES if name in shown]
    methods = {c["method"] for c in tested}
    compared = {name: methods.intersection(FIGURES[name]) for name, own in OWN.items() if methods & own}
    figures = [name for name, found in compared.items() if not any(found < more for more in compared.values())]
    return tables + [("figure", name, preset) for name in figures]


def write_store(path: Path) -> None:
    """Write a store of the committed records and no others; see `draw_all` for what it raises."""
    files = [*sorted((RECORDS / "rows").glob("*/*.jsonl")), RECORDS / "memory-h200.jsonl"]
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / path.name
        with Store(made) as store:
            for file in files:
                if conflicts := store.merge(file).conflicts:
                    raise StoreError(f"{file} has another result of {conflicts[0]} than a file before it; keep one")
        write_whole(path, lambda partial: shutil.copyfile(made, partial))
