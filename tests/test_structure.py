"""The house as a whole: small folders, and imports that go one way."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def committed() -> list[Path]:
    out = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    if not out:
        pytest.skip("no clone")
    return [Path(line) for line in out.splitlines()]


def test_no_folder_has_more_than_15_entries() -> None:
    """Hidden files and __init__.py are not counted."""
    entries: dict[Path, set[str]] = {}
    for path in committed():
        for entry in (path, *path.parents[:-1]):
            if entry.name != "__init__.py" and not entry.name.startswith("."):
                entries.setdefault(entry.parent, set()).add(entry.name)
    assert {str(folder): len(names) for folder, names in entries.items() if len(names) > 15} == {}


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports inside functions count; those for types alone do not."""
    paths = {named(path): ROOT / path for path in committed() if path.suffix == ".py" and path.parts[0] != "tests"}
    imported = {name: {found for found in imports(path, paths) if found != name} for name, path in paths.items()}
    assert len(imported["helene.steps.base"]) > 10
    TopologicalSorter(imported).prepare()  # raises CycleError, which names the circle


def named(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def imports(path: Path, paths: dict[str, Path]) -> Iterator[str]:
    """Modules of the project that a module takes something from."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    blocks = (node for node in ast.walk(tree) if isinstance(node, ast.If))
    for_types = {inner for block in blocks if ast.unparse(block.test) == "TYPE_CHECKING" for inner in ast.walk(block)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node not in for_types:
            for alias in node.names:
                inside = f"{node.module}.{alias.name}"
                yield from {inside if inside in paths else node.module} & paths.keys()
