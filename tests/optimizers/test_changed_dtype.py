"""A model whose dtype changes between steps: the step of a fresh optimizer over it, or one error."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from helene import Helene, MeZO, Trajectory, ZOAdam
from helene.engine import Engine
from helene.steps.base import Base

X = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))


def model_of(dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).to(dtype)


def loss(model: Any, x: Any) -> Any:
    return model(x.to(model[0].weight.dtype)).double().square().mean()


def stepper(model: Any, optimizer: Base, engine: bool) -> Any:
    if engine:
        made = Engine(model, optimizer, loss, capture="repeat")
        return lambda: made.step(X)
    return lambda: optimizer.step(lambda: loss(model, X))


def adam(model: Any, **options: Any) -> Base:
    return ZOAdam(model.named_parameters(), lr=1e-2, **options)


def helene(model: Any) -> Base:
    return Helene(model.named_parameters(), lr=1e-2, anneal_horizon=100, batch_size=8, interval=1)


def cast_after_three_steps(make: Any, first: torch.dtype, then: torch.dtype, engine: bool) -> tuple[Any, Any, Any]:
    """Model, optimizer and what makes a step."""
    model = model_of(first)
    optimizer = make(model)
    step = stepper(model, optimizer, engine)
    for _ in range(3):
        step()
    model.to(then)
    return model, optimizer, step


@pytest.mark.parametrize("engine", [False, True])
@pytest.mark.parametrize("make", [adam, helene], ids=lambda m: m.__name__)
@pytest.mark.parametrize(("first", "then"), [(torch.float32, torch.float64), (torch.float64, torch.float32)])
def test_state_of_another_dtype_is_refused_until_the_model_is_as_it_was(
    first: torch.dtype, then: torch.dtype, make: Any, engine: bool
) -> None:
    model, optimizer, step = cast_after_three_steps(make, first, then, engine)
    before = [p.detach().clone() for p in model.parameters()]
    for _ in range(2):
        with pytest.raises(
            ValueError, match=rf"0.weight has come to be {then}, whose momentum is {then}, but .* {first};"
        ):
            step()
    assert all(map(torch.equal, before, model.parameters()))
    model.to(first)
    step()
    assert optimizer.steps_made == 4
    make(model).load_state_dict(copy.deepcopy(optimizer.state_dict()))


@pytest.mark.parametrize("engine", [False, True])
@pytest.mark.parametrize(
    ("make", "first", "then"),
    [
        (lambda m: MeZO(m.named_parameters(), lr=1e-2), torch.float32, torch.float64),
        (lambda m: MeZO(m.named_parameters(), lr=1e-2), torch.float64, torch.bfloat16),
        (adam, torch.float32, torch.bfloat16),
        (adam, torch.bfloat16, torch.float32),
        (lambda m: adam(m, state_dtype="bfloat16"), torch.float32, torch.float64),
    ],
)
def test_where_the_state_fits_steps_are_those_of_a_resumed_optimizer(
    make: Any, first: torch.dtype, then: torch.dtype, engine: bool
) -> None:
    model, optimizer, step = cast_after_three_steps(make, first, then, engine)
    twin = copy.deepcopy(model)
    resumed = make(twin)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    again = stepper(twin, resumed, False)
    for _ in range(3):
        step()
        again()
        assert all(map(torch.equal, model.parameters(), twin.parameters()))


def test_a_recording_of_two_dtypes_is_refused() -> None:
    model = model_of(torch.float32)
    optimizer = MeZO(model.named_parameters(), lr=1e-2)
    Trajectory.record(optimizer)
    optimizer.step(lambda: loss(model, X))
    model.half()
    with pytest.raises(ValueError, match=r"the first that differs is 0.weight"):
        optimizer.step(lambda: loss(model, X))
    assert optimizer.steps_made == 1
