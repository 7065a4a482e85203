"""First-order steps on a CPU: recorded gradients, their calls made anew, and kernels' moves along them."""

from __future__ import annotations

import copy

import pytest
import torch
from kernel_updates import watch_launches
from small_models import batch_of, loss, made, pair_of, seeded
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from helene import SGD, Adam, AdamW, Lion, SophiaG
from helene.engine.gradients import GradientEngine
from helene.evaluation.curvature import all_finite
from helene.rules import HeleneRule
from helene.steps import base
from helene.steps.first import FirstOrder


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(("method", "options"), [(SGD, {"momentum": 0.9}), (Adam, {"weight_decay": 0.1})])
def test_recorded_gradients_give_the_optimizers_steps(method, options, dtype):
    model, twin, engine, second = pair_of(method, GradientEngine, dtype, **options)
    modes = []
    for step in range(1, 9):
        if step == 6:
            engine.optimizer.param_groups[0]["lr"] = second.param_groups[0]["lr"] = 0.01
        batch = batch_of(step, 6 if step % 3 else 4, dtype)
        ours, theirs = engine.step(batch), second.step(lambda batch=batch: loss(twin, batch))
        modes.append(engine.mode)
        assert torch.equal(ours, theirs), step
        assert all(map(torch.equal, model.parameters(), twin.parameters())), step
    assert modes == ["plain", "graph", "plain", *["graph"] * 5]
    assert all(p.grad is None for p in model.parameters())


@pytest.fixture
def launched(monkeypatch):
    """Updates are kernels, in the interpreter; the list grows by the tables of each launch."""
    pytest.importorskip("triton")
    monkeypatch.setenv("HELENE_KERNELS", "triton")
    return watch_launches(monkeypatch)


@pytest.mark.parametrize(
    ("method", "options", "dtype"),
    [
        (Adam, {"weight_decay": 0.1}, torch.float32),
        (Adam, {"lr": lambda step: 0.1 / step}, torch.float32),
        (Adam, {"state_dtype": "8bit"}, torch.float32),
        (SGD, {"momentum": 0.9}, torch.bfloat16),
        (SGD, {"momentum": 0.9, "rounding": "stochastic"}, torch.bfloat16),
        (Lion, {}, torch.float32),
    ],
)
def test_replayed_gradients_move_by_kernels(method, options, dtype, launched):
    """Also at steps that look at rounding; of the first batch of a shape the gradient may be anywhere.

    A root may be off in its last bit, and the interpreter cuts to bfloat16: a unit a step, most of which cancel.
    """
    model, twin, engine, second = pair_of(method, GradientEngine, dtype, **options)
    found = []
    for step in range(1, 13):
        before, batch = len(launched), batch_of(step, 6 if step % 3 else 4, dtype)
        ours, theirs = engine.step(batch), second.step(lambda batch=batch: loss(twin, batch))
        found += [step] * (len(launched) - before)
        unit = 4 * torch.finfo(dtype).eps
        torch.testing.assert_close(ours, theirs, rtol=unit, atol=unit)
        for a, b in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=unit, atol=unit)
    assert found == [2, *range(4, 13)]
    assert all(tiles is launched[0] for tiles in launched)


@pytest.mark.parametrize(
    ("method", "options", "dtype"),
    [
        (AdamW, {}, torch.float64),
        (SophiaG, {"curvature": "backprop", "batch_size": 6, "interval": 2}, torch.float32),
    ],
)
def test_what_kernels_cannot_do_is_done_without(method, options, dtype, launched):
    model, twin, engine, second = pair_of(method, GradientEngine, dtype, **options)
    for step in range(1, 6):
        batch = batch_of(step, dtype=dtype)
        engine.step(batch)
        second.step(lambda batch=batch: loss(twin, batch))
        assert all(map(torch.equal, model.parameters(), twin.parameters())), step
    assert engine.mode == "graph"
    assert not launched


class FirstHelene(FirstOrder):
    """HELENE's update along the gradient."""

    RULE = HeleneRule

    def __init__(self, params, **hyper):
        super().__init__(params, {"anneal_horizon": 9, "batch_size": 6, "curvature": "backprop", **hyper}, {})


def test_an_estimate_of_h_is_taken_in_ahead_of_the_kernel(launched):
    model, twin, engine, second = pair_of(FirstHelene, GradientEngine, interval=2, lr=0.01)
    for step in range(1, 7):
        batch = batch_of(step)
        engine.step(batch)
        second.step(lambda batch=batch: loss(twin, batch))
    assert len(launched) == 5
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(a, b)
        h, other = (o.state[p]["curvature"] for o, p in ((engine.optimizer, a), (second, b)))
        assert torch.equal(h, other)
    assert h.any()


def test_moves_follow_the_gradient_that_was_used(launched):
    """A gradient that is not finite when replayed and fine when computed anew; other parameters for a while."""
    flaky = {"at": 0}

    def sometimes(model, batch):
        flaky["at"] -= 1
        off = (
            (model.idle - model.idle.detach()).abs().sqrt().sum() if flaky["at"] == 0 else 0.0
        )  # 0, with a slope of nan
        return loss(model, batch) + off

    model = made()
    twin = copy.deepcopy(model)
    first, second = (SGD(m.parameters(), lr=0.05) for m in (model, twin))
    engine = GradientEngine(model, first, sometimes, capture="repeat")
    for step in range(1, 31):
        for each in (model, twin):
            each.second.bias.requires_grad_(not 12 <= step < 20)
        flaky["at"] = 1 if step in (7, 25) else 0
        batch = batch_of(step, 6 if step % 5 else 4)
        engine.step(batch)
        second.step(lambda batch=batch: loss(twin, batch))
        assert all(map(torch.equal, model.parameters(), twin.parameters())), step
    assert engine.mode == "graph"
    assert len(launched) == 30 - 6  # of each shape the first, again with other parameters, and two that were not finite


def test_an_interrupted_update_is_made_once(launched, monkeypatch):
    """An error after the moves of a replayed step: they are not made again."""
    model, twin, engine, second = pair_of(SGD, GradientEngine)
    for step in range(1, 7):
        engine.step(batch_of(step))
        second.step(lambda step=step: loss(twin, batch_of(step)))
    layout, calls = base.layout_of, []

    def fails_once(*given):
        calls.append(1)
        if len(calls) == 2:  # the first is the plan's
            raise KeyboardInterrupt
        return layout(*given)

    monkeypatch.setattr(base, "layout_of", fails_once)
    with pytest.raises(KeyboardInterrupt):
        engine.step(batch_of(7))
    monkeypatch.undo()
    second.step(lambda: loss(twin, batch_of(7)))
    assert all(map(torch.equal, model.parameters(), twin.parameters()))
    assert engine.optimizer.steps_made == 7


def test_a_gradient_that_is_not_finite_is_refused():
    """The loss is finite, its derivative at 0 is not."""
    model = made()
    engine = GradientEngine(
        model,
        SGD(model.named_parameters(), lr=0.05),
        lambda m, b: loss(m, b) + (b["scale"] * m.idle.sum()).abs().sqrt(),
        capture="repeat",
    )
    for step in (1, 2):
        engine.step({**batch_of(step), "scale": torch.tensor(1.0)})
    kept = copy.deepcopy(model.state_dict())
    for _ in range(3):
        with pytest.raises(FloatingPointError, match="gradient is not finite"):
            engine.step({**batch_of(1), "scale": torch.tensor(0.0)})
    assert all(torch.equal(kept[name], value) for name, value in model.state_dict().items())


def test_a_recording_evaluates_no_loss_of_its_own():
    """A loss that draws finds the generator where ``optimizer.step`` would have it, a buffer is written once a step."""
    counts = []
    model, twin, engine, second = pair_of(SGD, GradientEngine)
    for each in (model, twin):
        each.first.register_forward_hook(lambda _, __, out: F.dropout(out, 0.5))
    engine._gradients.loss = lambda m, b: counts.append(0) or loss(m, b)
    for step in range(1, 5):
        assert torch.equal(*seeded(step, engine, second, twin)), step
    assert all(map(torch.equal, model.parameters(), twin.parameters()))
    assert len(counts) == 4


def test_parameters_may_be_frozen_and_thawed():
    """What was recorded for the trained ones is replayed when they are trained again."""
    model, twin, engine, second = pair_of(SGD, GradientEngine)
    for step in range(1, 10):
        for each in (model, twin):
            each.first.weight.requires_grad_(step not in (4, 5, 6))
        batch = batch_of(step)
        engine.step(batch)
        second.step(lambda batch=batch: loss(twin, batch))
        assert all(map(torch.equal, model.parameters(), twin.parameters())), step
        assert engine.mode == ("plain" if step in (1, 4) else "graph")


def test_the_source_of_curvature_leaves_the_steps_gradient_alone():
    """Under dropout the two gradients of a step that estimates h differ."""
    options = {"curvature": "backprop", "batch_size": 6, "interval": 2}
    model, twin, engine, second = pair_of(SophiaG, GradientEngine, **options)
    for each in (model, twin):
        each.first.register_forward_hook(lambda _, __, out: F.dropout(out, 0.5))
    for step in range(1, 8):
        assert torch.equal(*seeded(step, engine, second, twin)), step
        assert all(map(torch.equal, model.parameters(), twin.parameters())), step


def test_a_batch_that_was_computed_from_parameters_is_gone_back_through():
    """A recording would go back through the first batch's graph."""
    model, twin, engine, second = pair_of(SGD, GradientEngine)
    engine._gradients.loss = features = lambda m, b: F.cross_entropy(m.second(b["x"]), b["y"])

    def of(model, batch):
        return batch | {"x": torch.tanh(model.first(batch["x"]))}

    for step in range(1, 5):
        batch = batch_of(step)
        theirs = of(twin, batch)
        engine.step(of(model, batch))
        second.step(lambda theirs=theirs: features(twin, theirs))
        assert all(map(torch.equal, model.parameters(), twin.parameters())), step
    assert (engine.mode, engine.reason) == ("plain", "the batch has a graph of its own")


class Operations(TorchDispatchMode):
    """Counts torch's: on a GPU each is a kernel, or none."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_whether_all_is_finite_takes_as_many_operations_for_many_gradients():
    """Sums of such elements would overflow; their largest magnitude does not."""
    counts = []
    for number in (2, 50):
        gradients = [torch.full((3,), torch.finfo(torch.float32).max) for _ in range(number)]
        with Operations() as made:
            assert all_finite(gradients)
        counts.append(made.count)
        for spoiled in (float("nan"), float("inf"), -float("inf")):
            gradients[1][2] = spoiled
            assert not all_finite(gradients)
    assert counts[0] == counts[1]
