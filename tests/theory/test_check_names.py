"""What the page calls the checks of the proofs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from theory.conftest import spoken

ROOT = Path(__file__).parents[2]
#: What pytest makes of a parameter itself: a bare number, a truth value, the argument's name with a number.
BARE = re.compile(r"(?:^|-)(?:-?[\d.]+|True|False|None|[a-z]+\d+)(?=-|$)")


def test_a_parameter_reads_as_its_author_wrote_it() -> None:
    def test_the_search_has_power() -> None:
        """Of its twins."""

    item: Any = SimpleNamespace(
        originalname="test_the_search_has_power",
        callspec=SimpleNamespace(id=r"far, 32 \u2192 2, without \u221ad, a\\b"),
        function=test_the_search_has_power,
    )
    assert spoken(item) == r"the search has power [far, 32 → 2, without √d, a\b]: Of its twins."


@pytest.mark.parametrize("id", ["1-0.0-False-sides0", "eta0-1", "3", "shape2-2-True"])
def test_a_bare_parameter_is_noticed(id: str) -> None:
    assert BARE.search(id)


def test_no_check_of_a_proof_has_a_bare_parameter() -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "theory/proofs"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    names = re.findall(r"^theory/proofs/\S+::(\w+)\[(.*)\]$", done.stdout, re.MULTILINE)
    assert len(names) > 100, done.stdout + done.stderr
    assert [(test, id) for test, id in names if BARE.search(id)] == []
