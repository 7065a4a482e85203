"""The count of machine instructions: the committed one is that of the kernels as they are."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from helene.lab.runs.records import read_jsonl
from llm_bench.cli.committed_pages import RECORDS


def test_the_committed_counts_are_those_of_the_kernels(tmp_path):
    """In a process of its own: in others the kernels may be interpreted."""
    triton = pytest.importorskip("triton")
    committed = read_jsonl(RECORDS / "engine" / "instructions.jsonl")
    if committed[0].provenance["versions"]["triton"] != triton.__version__:
        pytest.skip("another version of the compiler")
    command = [sys.executable, "-m", "llm_bench.cli", "measure", "instructions", "--out", str(tmp_path)]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    subprocess.run(command, env=environment, check=True, capture_output=True)
    found = read_jsonl(tmp_path / "instructions.jsonl")
    counts = [{r.config["contestant"]: r.result["instructions"] for r in records} for records in (committed, found)]
    assert counts[0] == counts[1], "run: helene llm measure instructions"
    assert all(record.result["spills"] == 0 for record in found)
