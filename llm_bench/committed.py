"""The committed rows as pages: ``python -m llm_bench.committed``, which needs no GPU, models or data."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from helene.cli import main as helene
from helene.lab.store import Store

RECORDS = Path(__file__).parent / "records"
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
    path = out / "llm" / "rows.sqlite"
    path.parent.mkdir(parents=True, exist_ok=True)
    for earlier in path.parent.glob(f"{path.name}*"):  # of other records, perhaps
        earlier.unlink()
    with Store(path) as store:
        for file in (*sorted((RECORDS / "rows").glob("*.jsonl")), RECORDS / "memory-h200.jsonl"):
            store.merge(file)
    failed = 0
    for what, which, preset in PAGES:
        words = ["llm", what, which, "--preset", preset, "--draw-only", "--store", str(path), "--out", str(out)]
        failed += helene(words) != 0
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
