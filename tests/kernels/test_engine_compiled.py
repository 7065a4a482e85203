"""Captured steps with compiled blocks: same trajectory up to rounding, the model as it was, fallbacks that tell."""

from __future__ import annotations

import math
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
from helene.evaluation.agreement import check_agreement
from helene.evaluation.compiled import repeated_blocks

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
    with pytest.warns(UserWarning, match="not compiled: a loss is"):
        engine.step(batch_of(1))
    assert not engine.compiled


@pytest.mark.usefixtures("traced")
@pytest.mark.filterwarnings("ignore:.*of the updates of 16-bit weights")
def test_blocks_whose_parts_have_hooks_run_as_they_are() -> None:
    """A hook that is added between steps is called, in 16 bits too, where a check of losses would see nothing."""
    losses: list[list[float]] = []
    for compile in (False, True):
        torch.manual_seed(0)
        model = TiedModel().bfloat16()
        engine = _engine(model, lr=1e-5, compile=compile)
        losses.append([])
        for step in range(8):
            if step == 3:
                model.blocks[1].down.register_forward_hook(lambda module, inputs, output: output * 0)
            losses[-1].append(float(engine.step(batch_of(step))))
    assert losses[0] == losses[1]
    assert engine.compiled


def test_an_error_of_the_loss_is_no_compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.torch, "compile", partial(torch.compile, backend="eager"))
    model, raising = TiedModel(), [False]
    optimizer = MeZO(model.named_parameters(), lr=1e-3, model=model)

    def sometimes(model: Any, batch: Any) -> Any:
        if raising[0]:
            raise KeyError("boom")
        return loss(model, batch)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = Engine(model, optimizer, sometimes, capture="repeat", compile=True, **RING)
    engine.step(batch_of(0))
    raising[0] = True
    with pytest.raises(KeyError, match="boom"):
        engine.step(batch_of(1))
    raising[0] = False
    engine.step(batch_of(2))
    assert engine.compiled


@pytest.mark.usefixtures("traced")
def test_blocks_of_many_kinds_are_not_compiled_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_KINDS", 3)

    class Numbered(Block):
        number = 0

        def forward(self, x: Any) -> Any:
            return super().forward(x) * (1.0 if self.number < 1000 else 2.0)

    model = TiedModel()
    model.blocks = nn.ModuleList(Numbered(16) for _ in range(5))
    for number, block in enumerate(model.blocks):
        block.number = number
    engine = _engine(model, compile=True)
    engine.step(batch_of(0))
    with pytest.warns(UserWarning, match="captured as they are, not compiled: .*limit"):
        engine.step(batch_of(1))
    assert not engine.compiled


def test_losses_that_are_not_finite_or_of_other_dtypes() -> None:
    model = nn.ModuleDict({"codes": nn.Module(), "layer": nn.Linear(2, 2).bfloat16()})
    model["codes"].weight = nn.Parameter(torch.zeros(3, dtype=torch.int8), requires_grad=False)
    check_agreement(model, [1.0, math.nan], [1.001, 5.0])
    for other in (math.nan, math.inf, 1.1):
        with pytest.raises(RuntimeError, match="in the place of 1,"):
            check_agreement(model, [1.0], [other])


def test_rounding_is_let_pass_and_more_is_not() -> None:
    model = TiedModel()  # 21 modules without parts, so 4 u sqrt(42) = 1.5e-6 of the loss
    check_agreement(model, [3.0, 3.1], [3.0, 3.1 + 4e-6])
    with pytest.raises(RuntimeError, match=r"is 3.10001 in the place of 3.1, and rounding moves it by 4.*e-06"):
        check_agreement(model, [3.0, 3.1], [3.0, 3.1 + 6e-6])


def test_blocks_are_the_outermost_lists_of_one_class_with_parts() -> None:
    expert = partial(nn.Sequential, nn.Linear(2, 2))
    layers = nn.ModuleList(nn.ModuleDict({"experts": nn.ModuleList(expert() for _ in range(3))}) for _ in range(2))
    heads = nn.ModuleList(nn.Linear(2, 2) for _ in range(2))
    mixed = nn.ModuleList([expert(), nn.ModuleDict({"a": nn.Linear(2, 2)})])
    model = nn.ModuleDict({"heads": heads, "mixed": mixed, "layers": layers, "again": layers})
    assert repeated_blocks(model) == [*layers]
