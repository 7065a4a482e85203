"""The engine over its kernels in Triton's interpreter: copies, looked-up rows, fused updates, no GPU.

What a GPU adds is the capture; here a captured step is enqueued anew at each replay. Against `optimizer.step` without
kernels: normals differ by 8 · 2^-24 relative, and products are rounded before they are added.
"""

from __future__ import annotations

import importlib.util
import warnings
from typing import Any

import pytest
import torch

if torch.cuda.is_available() or importlib.util.find_spec("triton") is None:
    pytest.skip("for machines with triton and no GPU", allow_module_level=True)

from engine_models import batch_of, loss
from test_engine_attacks import Holder
from torch import nn

from helene import Helene, MeZO, ZOAdam
from helene.engine import Engine
from helene.kernels.backend import VARIABLE

RING: dict[str, Any] = {"scratch_bytes": 1 << 12, "unit_bytes": 600}
STEPS = 3  # the first, a captured one, a replayed one
VOCABULARY = 40  # a program of the interpreter takes milliseconds, so everything is small


def _trajectory(
    model: Any, cls: Any, engine: dict[str, Any] | None, repeat: bool, options: dict[str, Any]
) -> tuple[list[float], list[torch.Tensor], Any]:
    optimizer = cls(model.named_parameters(), lr=1e-3, seed=5, model=model, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = (
            None if engine is None else Engine(model, optimizer, loss, capture="repeat" if repeat else True, **engine)
        )
        losses = []
        for step in range(STEPS):
            batch = batch_of(step, 2, 5, VOCABULARY)
            value = optimizer.step(lambda b=batch: loss(model, b)) if made is None else made.step(batch)
            losses.append(float(value))
        if made is not None:
            made.flush()
    return losses, [p.detach().clone() for p in model.parameters()], made


class Tiny(nn.Module):
    """Tied rows, a weight that its module gives away, one that is read where its module never runs."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.first, self.second = nn.Embedding(VOCABULARY, 8), nn.Linear(8, 8), nn.Linear(8, 8, bias=False)
        self.head = nn.Linear(8, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight
        self.lent, self.idle = Holder(8, "view"), nn.Linear(8, 8, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        lent, x = self.lent(), self.embed(ids)
        x = torch.relu(self.second(torch.relu(self.first(x)))) @ lent
        return self.head(x + x @ self.idle.weight)


def _small() -> Tiny:
    torch.manual_seed(0)
    return Tiny()


EIGHT_BIT = {"anneal_horizon": 100, "batch_size": 4, "interval": 2, "state_dtype": "8bit"}


@pytest.mark.parametrize(
    ("cls", "options", "engine", "repeat"),
    [
        (MeZO, {}, RING, False),
        (MeZO, {}, RING, True),
        (Helene, EIGHT_BIT, RING, True),
        (ZOAdam, {"state_dtype": "bfloat16"}, {}, True),
    ],
)
def test_the_trajectory_is_that_of_optimizer_step(
    cls: Any, options: dict[str, Any], engine: dict[str, Any], repeat: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = [_small(), _small()]
    expected, weights, _ = _trajectory(models[0], cls, None, False, options)
    monkeypatch.setenv(VARIABLE, "triton")
    got, mine, made = _trajectory(models[1], cls, engine, repeat, options)
    assert made.fused
    assert made.mode == ("graph" if repeat else "eager")
    if engine:
        calls = made.schedules[0].calls
        assert [call.rows for call in calls if call.module is models[1].embed] == [True]
    assert got == pytest.approx(expected, rel=1e-4)
    for a, b in zip(mine, weights, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_learning_rate_zero_moves_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "triton")
    model = _small().to(torch.bfloat16)
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer = MeZO(model.named_parameters(), lr=0.0, model=model)
        engine = Engine(model, optimizer, loss, capture="repeat", **RING)
    for step in range(STEPS):
        engine.step(batch_of(step, 2, 5, VOCABULARY))
    assert all(torch.equal(kept[name], value) for name, value in model.state_dict().items())
