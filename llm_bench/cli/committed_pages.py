"""The committed rows as pages: ``python -m llm_bench.cli.committed_pages``, which needs no GPU, models or data."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from helene.cli import main as helene
from helene.files import write_whole
from helene.lab.store import Store, StoreError

RECORDS = Path(__file__).parents[1] / "records"
PAGES = (  # the last is the part's main page
    *(("figure", name, "parts") for name in ("ablation", "curvature", "floor", "optimizers")),
    ("table", "memory", "small"),
    ("table", "2", "brief"),
    *(("table", number, "small") for number in ("3", "1", "2")),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Put the records into one store and draw every page that they make; returns 1 where one cannot be drawn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("reports"), help="folder of the reports (default: reports)")
    out = parser.parse_args(argv).out
    path = out / "llm" / "committed.sqlite"
    try:
        write_store(path)
    except (OSError, StoreError) as err:
        parser.error(str(err))
    failed = 0
    for what, which, preset in PAGES:
        words = ["llm", what, which, "--preset", preset, "--draw-only", "--store", str(path), "--out", str(out)]
        failed += helene(words) != 0
    return int(failed > 0)


def write_store(path: Path) -> None:
    """Write a store of the committed records and no others.

    Raises:
        StoreError: If there are no records, as in a wheel.
        OSError: If it cannot be written.
    """
    files = [*sorted((RECORDS / "rows").glob("*.jsonl")), RECORDS / "memory-h200.jsonl"]
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / path.name
        with Store(made) as store:
            for file in files:
                store.merge(file)
        write_whole(path, lambda partial: shutil.copyfile(made, partial))


if __name__ == "__main__":
    raise SystemExit(main())
