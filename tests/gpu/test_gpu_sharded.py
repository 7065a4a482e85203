"""Sharded parameters on one card, against whole ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from shard_steps import STEPS, UPDATES, check_steps, one_rank, update_rows

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("method", "options", "dtype"), UPDATES)
def test_rows_move_as_those_of_the_whole(
    monkeypatch: pytest.MonkeyPatch, device: torch.device, method: Any, options: dict[str, Any], dtype: torch.dtype
) -> None:
    """To the bit: z and the words of rounding are functions of an element's place, and all else is by element."""
    for mine, whole in update_rows(monkeypatch, device, method, options, dtype):
        assert torch.equal(mine, whole)


@pytest.mark.parametrize(("method", "options"), STEPS)
@pytest.mark.parametrize("way", ["tensor", "number", "engine"])
def test_a_model_of_one_rank_makes_the_steps_of_a_whole_one(
    device: torch.device, method: Any, options: dict[str, Any], way: str
) -> None:
    """Whose update is one launch; a loss that is a number must reach nccl too."""
    with one_rank(device):
        check_steps(device, method, options, way)
