"""Captured steps with compiled blocks: same trajectory up to rounding, the model as it was, fallbacks that tell."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import pytest
import torch
from engine_models import Block, TiedModel, batch_of, loss
from torch import nn

from helene import MeZO
from helene.engine import Engine
from helene.evaluation import compiled as module
from helene.evaluation.compiled import check_agreement, repeated_blocks

RING = {"scratch_bytes": 1 << 16, "unit_bytes": 3000}


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks go through torch's tracer and run what it found; no compiler is needed."""
    monkeypatch.setattr(module.torch, "compile", partial(torch.compile, backend="eager"))


def _engine(model: nn.Module, lr: float = 1e-3, **options: Any) -> Engine:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Engine(
            model, MeZO(model.named_parameters(), lr=lr, seed=5, model=model), loss, capture="repeat", **RING, **options
        )


@pytest.mark.usefixtures("traced")
def test_the_trajectory_is_that_of_plain_captured_steps() -> None:
    losses, models = [], []
    for compile in (False, True):
        torch.manual_seed(0)
        models.append(TiedModel())
        engine = _engine(models[-1], compile=compile)
        # Lengths in turns: the second is compiled anew or taken by the first one's code.
        losses.append([float(engine.step(batch_of(step, length=9 + step % 2))) for step in range(8)])
        assert engine.mode == "graph"
        assert engine.compiled is compile
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert all("forward" not in block.__dict__ for block in models[1].blocks)


@pytest.mark.usefixtures("traced")
def test_each_block_is_copied_as_one_and_runs_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    model = TiedModel()
    engine, ran = _engine(model, compile=True), []
    monkeypatch.setattr(Block, "forward", _noting(Block.forward, ran))
    for step in range(3):
        engine.step(batch_of(step))
    assert [call.module for call in engine.schedules[-1].calls if isinstance(call.module, Block)] == [*model.blocks]
    before = len(ran)
    engine.step(batch_of(3))
    assert len(ran) == before  # a recorded step runs what was traced


def _noting(forward: Any, ran: list[int]) -> Any:
    def noted(self: Any, x: Any) -> Any:
        ran.append(1)
        return forward(self, x)

    return noted


def test_a_compiler_that_fails_is_told_and_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> Any:
        raise NotImplementedError("no such instruction")

    monkeypatch.setattr(module.torch, "compile", partial(torch.compile, backend=failing))
    engine = _engine(TiedModel(), compile=True)
    engine.step(batch_of(0))
    with pytest.warns(UserWarning, match="captured as they are, not compiled: .*no such instruction"):
        engine.step(batch_of(1))
    assert engine.mode == "graph"
    assert not engine.compiled


def test_compiled_forwards_that_give_another_loss_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(forward: Any, **_: Any) -> Any:
        return lambda x: forward(x) * 1.01

    monkeypatch.setattr(module.torch, "compile", wrong)
    engine = _engine(TiedModel(), compile=True)
    engine.step(batch_of(0))
    with pytest.warns(UserWarning, match="not compiled: losses move by"):
        engine.step(batch_of(1))
    assert not engine.compiled


def test_rounding_is_let_pass_and_more_is_not() -> None:
    model = TiedModel()  # 21 modules without parts, so 4 u sqrt(42) = 1.5e-6 of the loss
    check_agreement(model, [3.0, 3.1], [3.0, 3.1 + 4e-6])
    with pytest.raises(RuntimeError, match=r"losses move by 6e-06, rounding by 4.*e-06 at most"):
        check_agreement(model, [3.0, 3.1], [3.0, 3.1 + 6e-6])


def test_blocks_are_the_outermost_lists_of_one_class_with_parts() -> None:
    expert = partial(nn.Sequential, nn.Linear(2, 2))
    layers = nn.ModuleList(nn.ModuleDict({"experts": nn.ModuleList(expert() for _ in range(3))}) for _ in range(2))
    heads = nn.ModuleList(nn.Linear(2, 2) for _ in range(2))
    mixed = nn.ModuleList([expert(), nn.ModuleDict({"a": nn.Linear(2, 2)})])
    model = nn.ModuleDict({"heads": heads, "mixed": mixed, "layers": layers, "again": layers})
    assert repeated_blocks(model) == [*layers]
