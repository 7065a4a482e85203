"""What runs on several GPUs, over gloo on the CPU: the same code but for the throughput."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from llm_bench.rivals import parallel


def test_two_processes_make_the_trajectories_of_one(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "llm_bench.rivals.parallel", "--device", "cpu", "--out", str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [json.loads(line) for line in (tmp_path / "parallel.jsonl").read_text().splitlines()]
    found = {line["config"]["part"]: line["result"] for line in lines if "config" in line}
    assert set(found) == {"data parallel", "spread"}
    assert found["data parallel"]["same"]
    assert found["data parallel"]["same_bits"]
    assert found["data parallel"]["loss_moved"] > 100 * parallel.LOSS_LIMIT
    assert found["spread"]["same"]


def test_another_direction_is_told_from_rounding() -> None:
    """The comparison can fail: one step's c or z off, and a trajectory that was not made at all."""
    device = torch.device("cpu")
    expected = parallel._alone(
        parallel.build("opt-tiny", torch.float32, "cpu"), parallel.whole_batch(1, device), device
    )
    assert parallel.compare(expected, expected)["same"]
    theta = expected["theta"].clone()
    theta[17] += 1e-2
    assert not parallel.compare(expected, {**expected, "theta": theta})["same"]
    losses = [*expected["losses"][:-1], expected["losses"][-1] * (1 + 1e-4)]
    assert not parallel.compare(expected, {**expected, "losses": losses})["same"]
    with pytest.raises(ValueError, match="zip"):
        parallel.compare(expected, {**expected, "losses": losses[1:]})
