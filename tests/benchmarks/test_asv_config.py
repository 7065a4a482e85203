"""asv's environment holds what the package needs, at the versions that are tested."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def name_of(requirement: str) -> str:
    return re.split(r"[\[<>=!~; ]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def test_the_matrix_has_every_dependency_at_the_pinned_version():
    """A dependency that is forgotten in the matrix fails only in the environment that asv builds."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed = {name_of(r) for r in [*project["dependencies"], *extras["suite"], *extras["llm"]]}
    matrix = json.loads((ROOT / "asv.conf.json").read_text())["matrix"]["req"]
    assert needed <= {name_of(name) for name in matrix}
    lines = (ROOT / ".ci" / "constraints.txt").read_text().split()
    pins = {name_of(line): line.split("==")[1] for line in lines if "==" in line}
    assert {name: versions[0] for name, versions in matrix.items()} == {name: pins[name_of(name)] for name in matrix}
