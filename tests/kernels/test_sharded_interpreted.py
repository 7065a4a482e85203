"""Sharded parameters where kernels are, in Triton's interpreter; tests/gpu has the same on a card."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch

if torch.cuda.is_available() or importlib.util.find_spec("triton") is None:
    pytest.skip("for machines with triton and no GPU", allow_module_level=True)

from shard_steps import STEPS, UPDATES, check_steps, one_rank, update_rows

from helene.kernels.backend import VARIABLE

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "triton")


@pytest.mark.parametrize(("method", "options", "dtype"), UPDATES)
def test_rows_move_as_those_of_the_whole(
    monkeypatch: pytest.MonkeyPatch, method: Any, options: dict[str, Any], dtype: torch.dtype
) -> None:
    """To the bit: z and the words of rounding are functions of an element's place, and all else is by element."""
    for mine, whole in update_rows(monkeypatch, CPU, method, options, dtype):
        assert torch.equal(mine, whole)


@pytest.mark.parametrize("way", ["tensor", "engine"])
@pytest.mark.parametrize(("method", "options"), STEPS[1:])
def test_a_model_of_one_rank_makes_the_steps_of_a_whole_one(method: Any, options: dict[str, Any], way: str) -> None:
    with one_rank(CPU):
        check_steps(CPU, method, options, way)
