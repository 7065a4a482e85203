"""The batched simulator and the optimizers draw the same numbers. Oracle: `helene.noise`, call by call, bit for bit."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helene import noise
from synthetic.simulation import directions
from synthetic.simulation.directions import BatchedDirections

LAST = 2**64 - 1, 2**32 - 1


def one_by_one(sizes, seeds, steps):
    def z(seed, step):
        return torch.cat([noise.normal(seed, step, 0, noise.parameter_id(i), 0, size) for i, size in enumerate(sizes)])

    return torch.stack([torch.stack([z(seed, step) for step in steps]) for seed in seeds])


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 70), min_size=1, max_size=5),
    seeds=st.lists(st.integers(0, LAST[0]), min_size=1, max_size=3),
    steps=st.lists(st.integers(0, LAST[1]), min_size=1, max_size=3),
)
def test_rows_equal_single_calls(sizes, seeds, steps):
    assert torch.equal(BatchedDirections(sizes)(seeds, steps), one_by_one(sizes, seeds, steps))


@pytest.mark.parametrize("sizes", [(1,), (4,), (7, 8), (64,) * 3, (4 * directions._CHUNK + 9,)], ids=str)
def test_chunks_join(sizes):
    """Several chunks a call, whole steps or parts of one, at both ends of the key; in memory that is given or not."""
    seeds, steps = (0, 2**32, LAST[0]), [0, LAST[1], *range(1, 3 + 2 * directions._CHUNK // (-(-sizes[0] // 4)))]
    draw, out = BatchedDirections(sizes), torch.empty(3, len(steps), sum(sizes))
    z = draw(seeds, steps)
    assert draw(seeds, steps, out) is out
    assert torch.equal(out, z)
    some = [0, 1, 2, len(steps) // 2, len(steps) - 1]
    assert torch.equal(z[:, some], one_by_one(sizes, seeds, [steps[i] for i in some]))


def test_extreme_words_give_finite_normals():
    """u from 2^-33 to 1, both ends included, and the last angle."""
    uniform, angle, z = np.empty(2, np.float32), np.empty(2, np.float32), np.empty(4, np.float32)
    for word in (0, 2**32 - 1):
        uniform[:] = np.float32(word) * np.float32(2.0**-32) + np.float32(2.0**-33)
        angle[:] = np.float32(word >> 8) * directions._ANGLE
        directions._products(np.log(uniform), np.cos(angle), np.sin(angle), z)
        assert np.isfinite(z).all()
        assert abs(z).max() <= math.sqrt(66 * math.log(2)) * (1 + 2**-22)


@pytest.mark.parametrize(("seed", "step"), [(-1, 0), (2**64, 0), (0, -1), (0, 2**32)])
def test_keys_that_do_not_fit_are_refused(seed, step):
    with pytest.raises(ValueError, match=f"got {seed or step}"):
        BatchedDirections([4])([0, seed], [0, step])


@pytest.mark.parametrize(
    "out",
    [
        torch.empty(2, 3, 7),
        torch.empty(2, 2, 8),
        torch.empty(2, 3, 8).int(),
        torch.empty(1, 3, 8).expand(2, 3, 8),
        torch.empty(2, 8, 3).mT,
    ],
    ids=["size", "steps", "dtype", "strides", "transposed"],
)
def test_memory_of_another_form_is_refused(out):
    with pytest.raises(ValueError, match="out must be a contiguous float32 tensor of shape"):
        BatchedDirections([4, 4])([1, 2], [1, 2, 3], out)


def test_nothing_asked_for_is_nothing_drawn():
    assert BatchedDirections([4])([], [1]).shape == (0, 1, 4)
    assert BatchedDirections([4])([1], []).shape == (1, 0, 4)
    for sizes in ([], [4, 0]):
        with pytest.raises(ValueError, match="sizes must be one or more numbers of at least 1"):
            BatchedDirections(sizes)
