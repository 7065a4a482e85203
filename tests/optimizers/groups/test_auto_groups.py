"""groups="auto" on batches of any size: groups of one size, one group at worst."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from helene import GroupedMeZO, Trajectory
from helene.engine.groups import GroupEngine


def model_of(dtype: torch.dtype = torch.float64) -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)).to(dtype)


def batch_of(rows: int) -> Any:
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(rows)).double()


def losses(model: Any, x: Any) -> Any:
    return model(x).square().sum(dim=1)


def step(model: Any, optimizer: Any, rows: int) -> int:
    """Make a step, and give its number of groups."""
    seen: list[int] = []
    seed = optimizer.factors

    def factors(plan: Any) -> Any:
        seen.append(plan.probing.groups)
        return seed(plan)

    optimizer.factors = factors
    try:
        optimizer.step(lambda: losses(model, batch_of(rows)))
    finally:
        del optimizer.factors
    return seen[-1]


@pytest.mark.parametrize(("rows", "groups"), [(1, [1, 1]), (2, [2, 1]), (7, [1, 1]), (9, [3, 3]), (16, [2, 8])])
def test_a_divisor_is_found_for_any_batch(rows: int, groups: list[int]) -> None:
    """Each step is that of an optimizer which was told its number of groups."""
    model = model_of()
    twin = copy.deepcopy(model)
    auto, told = (GroupedMeZO(m.named_parameters(), 0.1, groups=g) for m, g in ((model, "auto"), (twin, 1)))
    assert [step(model, auto, rows) for _ in range(2)] == groups
    for number in groups:
        told.param_groups[0]["groups"] = number
        told.step(lambda: losses(twin, batch_of(rows)))
    assert all(map(torch.equal, model.parameters(), twin.parameters()))


def test_a_short_batch_has_groups_of_its_own_and_replays() -> None:
    model = model_of()
    fresh = copy.deepcopy(model)
    optimizer = GroupedMeZO(model.named_parameters(), 0.1, groups="auto")
    recorded = Trajectory.record(optimizer)
    assert [step(model, optimizer, rows) for rows in (16, 16, 7, 16, 10, 1, 16)] == [2, 8, 1, 8, 5, 1, 8]
    recorded.replay(GroupedMeZO(fresh.named_parameters(), 9.0))
    assert all(map(torch.equal, model.parameters(), fresh.parameters()))


def test_examples_of_several_rows_are_counted_after_their_rows() -> None:
    """Five examples of three rows each: 15 rows, then 5 losses, in five groups that either can share."""
    model = model_of()
    optimizer = GroupedMeZO(model.named_parameters(), 0.1, groups="auto")
    for _ in range(3):
        optimizer.step(lambda: losses(model, batch_of(15)).view(5, 3).mean(dim=1))
    optimizer.param_groups[0]["groups"] = 4
    optimizer.step(lambda: losses(model, batch_of(30)).view(10, 3).mean(dim=1))
    assert optimizer.steps_made == 4


def test_the_engine_makes_the_same_steps() -> None:
    model = model_of()
    twin = copy.deepcopy(model)
    first, second = (GroupedMeZO(m.named_parameters(), 0.1, groups="auto") for m in (model, twin))
    engine = GroupEngine(model, first, losses, capture="repeat")
    for rows in (7, 16, 16, 16, 7, 16, 7, 7, 16, 16):
        engine.step(batch_of(rows))
        second.step(lambda rows=rows: losses(twin, batch_of(rows)))
        assert all(map(torch.equal, model.parameters(), twin.parameters())), rows


def test_a_batch_without_examples_is_one_error() -> None:
    model = model_of()
    optimizer = GroupedMeZO(model.named_parameters(), 0.1, groups="auto")
    with pytest.raises(ValueError, match="returned no loss; give batches of one example or more"):
        optimizer.step(lambda: losses(model, batch_of(0)))
    assert optimizer.param_groups[0]["groups"] == 2
