"""Every test run as one row of a Parquet file, for whoever wants to look for themselves. Never imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from helene.lab.report.report_files import write_file
from synthetic.analysis.verdicts import Analysed
from synthetic.design import STATUS_OF

COLUMNS = (
    "record",
    "family",
    "start",
    "method",
    "variant",
    "n",
    "max_d",
    "d",
    "trace_over_mu",
    "seed",
    "steps",
    "status",
)


def write_runs(path: Path, analysed: Sequence[Analysed]) -> Path | None:
    """Write the runs; None where pyarrow is not installed, since nothing else needs it.

    A miss has ``steps`` inf. Borrowed series are left out: their runs are there under the start that they were made
    from.

    Raises:
        ValueError: If the file cannot be written.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        return None
    rows = [row for a in analysed if not a.series.borrowed for row in _rows(a)]
    table = pyarrow.table({name: [row[i] for row in rows] for i, name in enumerate(COLUMNS)})
    return write_file(path, lambda partial: parquet.write_table(table, partial))


def _rows(a: Analysed) -> list[tuple[Any, ...]]:
    s = a.series
    return [
        (c.key, s.family, s.start, s.method, s.variant, c.n, c.max_d, c.d, c.trace_over_mu, seed, float(steps), word)
        for c in s.cells
        for seed, (steps, word) in enumerate(zip(c.steps, _words(c.letters, len(c.steps)), strict=True))
    ]


def _words(letters: str, count: int) -> list[str]:
    return [STATUS_OF[letter] for letter in letters] or ["out_of_budget"] * count
