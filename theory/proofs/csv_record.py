"""The committed records of the pages: rows of a CSV file."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows of the same keys, which become the header."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read(path: Path) -> list[dict[str, str]]:
    """The rows, values as text."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
