"""Bytes beyond the parameters, counted by the allocators, against what is predicted; seconds against their floor."""

from __future__ import annotations

import pytest
import torch

from helene.lab import costs
from helene.rules import precision

CURVED = {"batch_size": 4}
METHODS = [
    ("Helene", {"anneal_horizon": 9, **CURVED}),
    ("Helene", {"anneal_horizon": 9, "curvature": "none"}),
    ("Helene", {"anneal_horizon": 9, "curvature": "backprop", **CURVED}),
    ("MeZO", {}),
    ("ZOMomentum", {}),
    ("ZOConservative", {}),
    ("ZOAdam", {}),
    ("ZOLion", {}),
    ("ZOSophia", CURVED),
    ("ForwardGrad", {}),
    ("HiZOO", {}),
    ("FZOO", {"num_directions": 2}),
    ("SGD", {"momentum": 0.9}),
    ("Adam", {}),
]


@pytest.mark.parametrize(("method", "options"), METHODS, ids=lambda v: v if isinstance(v, str) else "")
@pytest.mark.parametrize(
    ("dtype", "state_dtype"), [(torch.float32, "float32"), (torch.bfloat16, "bfloat16"), (torch.bfloat16, "8bit")]
)
def test_bytes_are_as_predicted(method, options, dtype, state_dtype):
    """Within 2 % a parameter, and a constant workspace below its bound: two sizes tell them apart."""
    row = costs.memory_row(method, dtype, state_dtype, **options)
    assert row.measured <= 1.02 * row.predicted
    assert row.measured >= (0.98 if method != "ForwardGrad" else 0.9) * row.predicted
    assert row.constant <= costs.WORKSPACE_BYTES


def test_state_bytes():
    """8 bit: 1 byte and a float32 scale for 256 elements, so that two states take 2.03 bytes a parameter."""
    assert precision.state_bytes(precision.BLOCK, "8bit") == 256 * (1 + 4 / 256)
    assert precision.state_bytes(precision.BLOCK, "bfloat16") == 2 * 256
    assert precision.state_bytes(257, "8bit") == 257 + 8
    assert precision.state_bytes(10, "float32", 8) == 80


@pytest.mark.parametrize(("method", "normals"), [("MeZO", 3), ("Helene", 3)])
def test_normals_are_as_declared(method, normals):
    size = 1000
    _, step, _ = costs._problem(method, size)
    step()
    with costs.counted_normals() as counts:
        step()
    assert counts["elements"] == normals * size


def test_a_step_is_timed_against_its_floor():
    """The figure itself is a benchmark's: here it is positive, finite and made of the parts that it names."""
    cost = costs.step_cost("Helene", size=200_000, repeats=2)
    assert cost.floor_seconds == cost.num_bytes / cost.bandwidth + cost.num_normals / cost.normals_per_second
    assert 0 < cost.ratio < 100
    with pytest.raises(ValueError, match="known are MeZO, Helene"):
        costs.traffic("ZOAdam", 10)
