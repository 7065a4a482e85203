"""Gradients, tangents and losses on a CPU: recorded ones, their calls made anew, against ``optimizer.step``."""

from __future__ import annotations

import copy
import gc
import weakref
from contextlib import nullcontext

import pytest
import torch
from kernel_updates import watch_launches
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from helene import FZOO, SGD, Adam, AdamW, ForwardGrad, GroupedMeZO, Helene, Lion, MeZO, SophiaG
from helene.engine import Engine, recordings
from helene.engine.batches import Layout
from helene.engine.gradients import GradientEngine
from helene.engine.groups import GroupEngine
from helene.engine.spreads import SpreadEngine
from helene.engine.tangents import TangentEngine
from helene.evaluation.curvature import all_finite
from helene.rules import HeleneRule
from helene.steps import base
from helene.steps.first import FirstOrder

OWN = [(SGD, GradientEngine), (ForwardGrad, TangentEngine), (FZOO, SpreadEngine)]


class Small(nn.Module):
    """Two layers, a parameter that no loss reads."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 3)
        self.idle = nn.Parameter(torch.ones(2))

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


def made(dtype=torch.float32):
    torch.manual_seed(0)
    return Small().to(dtype)


def batch_of(step, rows=6, dtype=torch.float32):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(rows, 4, generator=generator, dtype=torch.float64).to(dtype)
    return {"x": x, "y": torch.randint(0, 3, (rows,), generator=generator)}


def loss(model, batch):
    return F.cross_entropy(model(batch["x"]), batch["y"])


def pair_of(method, engine_of, dtype=torch.float32, **options):
    model = made(dtype)
    twin = copy.deepcopy(model)
    first, second = (method(m.named_parameters(), **{"lr": 0.05, **options}) for m in (model, twin))
    return model, twin, engine_of(model, first, loss, capture="repeat"), second


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


@pytest.mark.parametrize("distribution", ["gaussian", "rademacher", "sphere"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_recorded_tangents_give_the_optimizers_steps(dtype, distribution):
    model, twin, engine, second = pair_of(ForwardGrad, TangentEngine, dtype, distribution=distribution)
    modes = []
    for step in range(1, 9):
        batch = batch_of(step, 6 if step % 3 else 4, dtype)
        ours, theirs = engine.step(batch), second.step(lambda batch=batch: loss(twin, batch))
        modes.append(engine.mode)
        assert torch.equal(ours, theirs), step
        assert all(map(torch.equal, model.parameters(), twin.parameters())), step
    # Steps 1, 2, 4 and 8 look whether the loss draws; of four rows step 3 is the first.
    assert modes == ["plain", "plain", "plain", "plain", "plain", "graph", "graph", "plain"]


@pytest.mark.parametrize(("method", "engine_of"), OWN)
def test_a_loss_that_is_not_finite_moves_nothing(method, engine_of):
    model, _, engine, _ = pair_of(method, engine_of)
    for step in range(1, 7):
        engine.step(batch_of(step))
    kept, steps = copy.deepcopy(model.state_dict()), engine.optimizer.steps_made
    spoiled = batch_of(7) | {"x": torch.full((6, 4), float("nan"))}
    with pytest.raises(FloatingPointError):
        engine.step(spoiled)
    assert all(torch.equal(kept[name], value) for name, value in model.state_dict().items())
    assert engine.optimizer.steps_made == steps
    engine.step(batch_of(8))
    assert engine.optimizer.steps_made == steps + 1


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


@pytest.mark.parametrize(("method", "engine_of"), OWN)
def test_a_model_that_has_changed_is_looked_at_anew(method, engine_of):
    model, twin, engine, second = pair_of(method, engine_of)
    for step in range(1, 10):
        if step == 7:
            for each in (model, twin):
                each.second.weight.data = each.second.weight.data * 2.0  # elsewhere in memory
        batch = batch_of(step)
        engine.step(batch)
        second.step(lambda batch=batch: loss(twin, batch))
        if step == 7:
            assert (engine.mode, engine.reason) == ("plain", "a shape's first step")
    assert all(map(torch.equal, model.parameters(), twin.parameters()))


def test_a_backward_of_the_steps_batch_is_recorded():
    torch.manual_seed(0)
    options = {"anneal_horizon": 100, "batch_size": 6, "interval": 2, "curvature": "backprop"}
    model = made()
    optimizer = Helene(model.named_parameters(), 1e-3, model=model, **options)
    engine, modes = Engine(model, optimizer, loss, capture="repeat"), []
    for step in range(1, 8):
        engine.step(batch_of(step))
        modes.append(engine._gradients.recordings.mode)
    assert modes[0] == "plain"
    assert modes[2:] == ["graph"] * 5


@pytest.mark.parametrize("engine_of", [GradientEngine, TangentEngine, SpreadEngine])
def test_another_optimizer_is_refused(engine_of):
    model = made()
    with pytest.raises(ValueError, match="got MeZO"):
        engine_of(model, MeZO(model.named_parameters()), loss)


@pytest.mark.parametrize(("method", "engine_of"), OWN)
def test_without_a_gpu_steps_are_plain(method, engine_of):
    model = made()
    engine = engine_of(model, method(model.named_parameters(), lr=0.1), loss)
    for step in (1, 2, 3):
        engine.step(batch_of(step))
    assert (engine.mode, engine.reason) == ("plain", "no CUDA device")


def seeded(step, engine, second, twin):
    """Both losses of a step, torch's generator being where it was before the first."""
    batch, made = batch_of(step), []
    for make in (lambda: engine.step(batch), lambda: second.step(lambda: loss(twin, batch))):
        torch.manual_seed(step)
        made.append(make())
    return made


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


@pytest.mark.parametrize("inside", [(1, 2, 3, 4, 5), (1, 3), (2, 4)])
@pytest.mark.parametrize("curvature", ["spsa", "backprop"])
def test_steps_may_be_made_in_inference_mode(curvature, inside):
    options = {"anneal_horizon": 100, "batch_size": 6, "interval": 2, "curvature": curvature}
    model, twin, engine, second = pair_of(Helene, Engine, **options)
    for step in range(1, 6):
        batch = batch_of(step)
        with torch.inference_mode(step in inside):
            engine.step(batch)
        second.step(lambda batch=batch: loss(twin, batch))
        assert all(map(torch.equal, model.parameters(), twin.parameters())), step


def test_steps_of_groups_may_be_made_in_inference_mode():
    model = made()
    optimizer = GroupedMeZO([p for p in model.parameters() if p is not model.idle], 0.01, groups=2)
    engine = GroupEngine(
        model, optimizer, lambda m, b: F.cross_entropy(m(b["x"]), b["y"], reduction="none"), capture="repeat"
    )
    for step in range(1, 6):
        with torch.inference_mode(step in (2, 4)):
            engine.step(batch_of(step))
    assert engine.mode == "graph"


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


@pytest.mark.parametrize("error", [RuntimeError, ValueError, KeyboardInterrupt])
def test_a_capture_that_ends_with_an_error_is_given_up(error, monkeypatch):
    """Whatever the error; only torch's own says that the forward cannot be captured. The graph is a stand-in."""
    given_up = []
    monkeypatch.setattr(recordings, "capturing", lambda *_: nullcontext())
    monkeypatch.setattr(recordings, "give_up", lambda graphs, _: given_up.extend(graphs))
    for name in ("CUDAGraph", "graph_pool_handle", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: object())
    made = recordings.Recordings(torch.device("cpu"), True, 4, nn.Module())
    made._refused = ""
    made.keep("key")

    def compute():
        raise error("while it is captured")

    with nullcontext() if error is RuntimeError else pytest.raises(error):
        assert made.compute("key", Layout([torch.zeros(1)]), lambda _: compute) is None
        assert made.reason == "its forward cannot be captured: while it is captured"
    assert len(given_up) == 1


@pytest.mark.parametrize(("method", "engine_of"), [*OWN, (GroupedMeZO, GroupEngine)])
def test_a_batch_may_be_on_another_device_than_the_model(method, engine_of):
    """The loss of a step that is not recorded, which is the first, finds it where the model is said to be."""
    model = made()
    model.idle.requires_grad_(False)

    def looked(_, batch):
        assert {x.device.type for x in batch.values()} == {"meta"}
        raise LookupError

    engine = engine_of(model, method([p for p in model.parameters() if p.requires_grad], lr=0.1), looked, capture=False)
    for part in (engine, getattr(engine, "_gradients", engine)):
        part._device = torch.device("meta")
    with pytest.raises(LookupError):
        engine.step(batch_of(1))


def test_a_missing_minibatch_of_the_source_is_told_at_the_first_step():
    """As ``optimizer.step`` does, not when h is first estimated."""
    options = {"anneal_horizon": 100, "batch_size": 6, "curvature": "spsa_own_batch", "first_estimate": 5}
    _, twin, engine, second = pair_of(Helene, Engine, **options)
    for step in (engine.step, lambda batch: second.step(lambda: loss(twin, batch))):
        with pytest.raises(ValueError, match="needs step"):
            step(batch_of(1))


@pytest.mark.parametrize(("method", "engine_of"), [*OWN, (MeZO, Engine)])
def test_a_forward_that_makes_a_buffer_anew_is_recorded_once(method, engine_of):
    model, twin, engine, second = pair_of(method, engine_of)
    for each in (model, twin):
        each.register_buffer("seen", torch.zeros(1))
        each.register_forward_pre_hook(lambda module, _: setattr(module, "seen", torch.zeros(1)))
    modes = []
    for step in range(1, 8):
        batch = batch_of(step)
        engine.step(batch)
        second.step(lambda batch=batch: loss(twin, batch))
        modes.append(engine.mode)
    assert all(map(torch.equal, model.parameters(), twin.parameters()))
    # After step 4 tangents are recorded anew: it looks whether the loss draws, and makes a buffer.
    assert modes[5:] == ["graph"] * 2


@pytest.mark.parametrize(("method", "engine_of"), [*OWN, (MeZO, Engine), (GroupedMeZO, GroupEngine)])
def test_a_buffer_that_a_graph_reads_lives_as_long_as_the_graph(method, engine_of):
    """A larger batch has the model make a larger one; the graph of the first shape reads the first one's memory."""
    model = made()
    model.idle.requires_grad_(False)
    model.register_buffer("cache", torch.zeros(0))

    def grows(module, args):
        if len(args[0]) > len(module.cache):
            module.cache = torch.ones(len(args[0]))

    model.register_forward_pre_hook(grows)
    engine = engine_of(
        model,
        method([p for p in model.parameters() if p.requires_grad], 0.01),
        lambda m, b: (m(b["x"]).square().sum(1) * m.cache[: len(b["x"])]).mean(),
        capture="repeat",
    )
    for step in range(1, 6):
        engine.step(batch_of(step, rows=6))
    assert engine.mode == "graph"
    read = weakref.ref(model.cache)
    engine.step(batch_of(6, rows=8))
    assert len(model.cache) == 8
    assert read() is not None
    engine.step(batch_of(7, rows=6))
    assert engine.mode == "graph"
    model.train(not model.training)
    for step in (8, 9):  # at the eighth tangents are not recorded
        engine.step(batch_of(step, rows=8))
    gc.collect()
    assert read() is None


def test_each_layers_tangent_is_recorded_where_layers_have_directions_of_their_own():
    model = made()
    twin = copy.deepcopy(model)
    parts = [[{"params": list(part.parameters())} for part in (m.first, m.second)] for m in (model, twin)]
    first, second = (ForwardGrad(groups, lr=0.05, direction_per_layer=True) for groups in parts)
    engine = TangentEngine(model, first, loss, capture="repeat", max_shapes=1)
    for step in range(1, 8):
        engine.step(batch_of(step))
        second.step(lambda step=step: loss(twin, batch_of(step)))
    assert engine.mode == "graph", engine.reason
    assert all(map(torch.equal, model.parameters(), twin.parameters()))


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
