"""Parameters that a loss reads without their module's hooks, or not at all: never a slope of theta itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helene import MeZO
from helene.probe import Direction, Probe, Target


def _net() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def _optimizer(net: nn.Module, **options: Any) -> MeZO:
    return MeZO(net.named_parameters(), lr=1e-2, seed=3, **options)


X = torch.linspace(-1.0, 1.0, 15).view(5, 3)


def _with_hooks(model: Any) -> Tensor:
    return model(X).square().mean()


def _without(model: Any) -> Tensor:
    return model[2].forward(torch.tanh(model[0].forward(X))).square().mean()


def _half(model: Any) -> Tensor:
    return model[2].forward(torch.tanh(model[0](X))).square().mean()


def _twice(model: Any) -> Tensor:
    return (model(X) + model(2 * X)).square().mean()


def _once_with(model: Any) -> Tensor:
    return (model(X) + model[2].forward(torch.tanh(model[0].forward(2 * X)))).square().mean()


@pytest.mark.parametrize(
    "losses",
    [
        [_with_hooks, _without, _without, _with_hooks],
        [_with_hooks, _half, _half],
        [_with_hooks, _half, _without],
        [_twice, _once_with, _twice],
    ],
)
def test_a_later_loss_may_call_forward_itself(losses: list[Any]) -> None:
    """Against full copies, which no way of reading escapes: the same trajectory to the bit."""
    model, twin = _net(), _net()
    optimizer, reference = _optimizer(model, model=model), _optimizer(twin)
    for loss in losses:
        mine, theirs = optimizer.step(lambda f=loss: f(model)), reference.step(lambda f=loss: f(twin))
        assert torch.equal(mine, theirs)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


def test_a_loss_that_reads_no_trained_parameter_is_refused() -> None:
    model, other = _net(), _net()
    optimizer = _optimizer(model, model=model)
    with pytest.raises(ValueError, match=r"reads none of the 4 trained parameters \(0.weight, 0.bias, 2.weight"):
        optimizer.step(lambda: _with_hooks(other))
    assert optimizer.param_groups[0]["step"] == 0


def test_reading_through_data_counts_as_reading() -> None:
    p = nn.Parameter(torch.tensor([1.0, 2.0]))
    probe = Probe([Target(p, 1, "p")])
    plus = probe.loss(lambda: p.data.square().sum(), Direction(0, 1), 1e-3)
    minus = probe.loss(lambda: p.data.square().sum(), Direction(0, 1), -1e-3)
    assert plus != minus


def test_merged_adapters_are_told() -> None:
    peft = pytest.importorskip("peft")
    model = nn.ModuleDict({"q_proj": nn.Linear(4, 4)})
    peft.inject_adapter_in_model(peft.LoraConfig(r=2, target_modules=["q_proj"]), model)
    model["q_proj"].merge()
    named = [(name, p) for name, p in model.named_parameters() if "lora_" in name]
    for _, p in named:
        p.requires_grad_(True)
    optimizer = MeZO(named, lr=1e-2, model=model)
    with pytest.raises(ValueError, match="are adapters merged"):
        optimizer.step(lambda: model["q_proj"](torch.ones(2, 4)).square().mean())
