"""The committed rows as pages, drawn without a GPU, models or data."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from helene.cli import main as helene
from helene.files import write_whole
from helene.lab.store import Store

RECORDS = Path(__file__).parents[1] / "records"
PAGES = (  # the last is the part's main page
    *(("figure", name, "parts") for name in ("ablation", "curvature", "floor", "optimizers")),
    ("table", "memory", "small"),
    ("table", "2", "brief"),
    ("table", "2", "all"),
    *(("table", number, "small") for number in ("3", "1", "2")),
)


def draw_all(out: Path) -> int:
    """Put the records into one store and draw every page that they make; returns 1 where one cannot be drawn.

    Args:
        out: Folder of the reports.

    Raises:
        StoreError: If there are no records, as in a wheel.
        OSError: If nothing can be written.
    """
    path = out / "llm" / "committed.sqlite"
    write_store(path)
    failed = 0
    for what, which, preset in PAGES:
        words = ["llm", what, which, "--preset", preset, "--draw-only", "--store", str(path), "--out", str(out)]
        failed += helene(words) != 0
    return int(failed > 0)


def write_store(path: Path) -> None:
    """Write a store of the committed records and no others; see `draw_all` for what it raises."""
    files = [*sorted((RECORDS / "rows").glob("*.jsonl")), RECORDS / "memory-h200.jsonl"]
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / path.name
        with Store(made) as store:
            for file in files:
                store.merge(file)
        write_whole(path, lambda partial: shutil.copyfile(made, partial))
