"""Imports inside llm_bench point one way: a folder knows those below it, none above."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import llm_bench

ROOT = Path(llm_bench.__file__).parent
# From the bottom up; each may import itself and what stands before it.
LAYERS = ["tasks", "models", "data", "evaluation", "tiny", "runs", "protocol", "cost", "report", "cli"]
MOST_ENTRIES = 15  # of one listing


def imported(text: str, folders: set[str]) -> Iterator[tuple[int, str]]:
    """Line and folder of every import of llm_bench, those inside functions too."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide which way they point"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            top, _, rest = name.partition(".")
            if top == "llm_bench" and (folder := rest.partition(".")[0]) in folders:
                yield node.lineno, folder


def test_imports_point_down() -> None:
    upward = []
    for path in sorted(ROOT.rglob("*.py")):
        place = path.relative_to(ROOT)
        height = LAYERS.index(place.parts[0]) if len(place.parts) > 1 else -1  # a module of no folder knows none
        above = set(LAYERS[height + 1 :])
        upward += [f"{place}:{line} imports {folder}" for line, folder in imported(path.read_text(), above)]
    assert not upward


def test_every_folder_has_a_layer_and_no_listing_is_long() -> None:
    folders = {path.parent for path in ROOT.rglob("*.py")}
    assert {folder.name for folder in folders if folder.parent == ROOT} == set(LAYERS)
    for folder in folders:
        entries = {path.relative_to(folder).parts[0] for path in folder.rglob("*") if path.suffix not in ("", ".pyc")}
        assert len(entries) <= MOST_ENTRIES, f"{folder.relative_to(ROOT)} has {len(entries)} entries"
