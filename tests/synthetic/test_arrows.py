"""Arrows of import inside synthetic point one way: each part may use those that stand before it, and itself."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import synthetic

ROOT = Path(synthetic.__file__).parent
MAY_USE = {
    "design": set(),
    "problems": set(),
    "methods": {"problems"},
    "simulation": {"design", "problems", "methods"},
    "control_theory": {"design", "problems", "methods"},
    "run": {"design", "problems", "methods", "simulation", "control_theory"},
    "analysis": {"design"},
    "report": {"design", "analysis"},
    "estimators": {"report"},
    "figures": {"simulation", "report", "estimators"},
    "measure": {"design", "simulation", "run"},
    "cli": {"design", "run", "analysis", "report", "figures", "measure"},
}


def part_of(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").parts[0]


def used_by(path: Path) -> set[str]:
    """Parts of synthetic that a module imports anywhere, inside functions too."""
    parts = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [f"synthetic.{a.name}" for a in node.names] if names == ["synthetic"] else []
        names += [a.name for a in node.names] if isinstance(node, ast.Import) else []
        parts |= {name.split(".")[1] for name in names if name.startswith("synthetic.")}
    return parts


def test_the_parts_have_an_order():
    before: set[str] = set()
    for part, used in MAY_USE.items():
        assert used <= before, f"{part} may use only what stands before it"
        before.add(part)


@pytest.mark.parametrize("part", MAY_USE)
def test_no_part_imports_another_than_it_may(part):
    paths = [p for p in ROOT.rglob("*.py") if part_of(p) == part]
    assert paths
    for path in paths:
        assert used_by(path) <= MAY_USE[part] | {part}, path


def test_every_module_belongs_to_a_part():
    assert {part_of(p) for p in ROOT.rglob("*.py")} == {*MAY_USE, "__init__"}


def test_no_folder_has_more_than_15_entries():
    """Records and designs are data: one file per experiment."""
    folders = [ROOT, *(p for p in ROOT.iterdir() if p.is_dir() and p.name not in ("records", "designs", "__pycache__"))]
    for folder in folders:
        names = {p.name for p in folder.iterdir()} - {"__pycache__"}
        assert len(names) <= 15, f"{folder.name} has {len(names)} entries: {sorted(names)}"
