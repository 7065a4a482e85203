"""No entry of a parameter group is read that no description declares: a misspelt one would be ignored in silence."""

from __future__ import annotations

import ast
from pathlib import Path

import helene
from helene.rules.storage import Storage
from helene.steps import checks
from helene.steps.layered import Layered
from helene.steps.plan import names

METHODS = [getattr(helene, name) for name in helene.__all__]
DECLARED = {
    name
    for cls in METHODS
    if isinstance(cls, type) and issubclass(cls, Layered)
    for name in names(cls.RULE, cls.PROBING, Storage)
}
KNOWN = DECLARED | {*checks.LABELS, *checks.SCHEDULERS, "step"}


def keys_read(source: str) -> set[str]:
    """Constant keys by which something called a group, or an item of param_groups, is subscripted or asked."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Subscript):
            owner, key = node.value, node.slice
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("get", "pop"):
            owner, key = node.func.value, node.args[0] if node.args else None
        else:
            continue
        told = ast.unparse(owner)
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            if told.split(".")[-1] in ("group", "param_group", "new", "g") or "param_groups[" in told:
                found.add(key.value)
    return found


def test_every_key_that_is_read_is_declared() -> None:
    folder = Path(helene.__file__).parent
    read = {key for path in folder.rglob("*.py") if "lab" not in path.parts for key in keys_read(path.read_text())}
    assert {"lr", "step", "params"} <= read
    assert read <= KNOWN, read - KNOWN


def test_an_undeclared_key_is_found() -> None:
    assert keys_read('x = optimizer.param_groups[0]["floor_rule"]; y = group.get("lamda")') == {"floor_rule", "lamda"}
    assert not {"floor_rule", "lamda"} & KNOWN
