"""What the engines of recordings have in common, on a CPU: calls made anew, against ``optimizer.step``."""

from __future__ import annotations

import copy
import gc
import weakref
from contextlib import nullcontext

import pytest
import torch
from small_models import batch_of, loss, made, pair_of
from torch import nn
from torch.nn import functional as F

from helene import FZOO, SGD, ForwardGrad, GroupedMeZO, Helene, MeZO
from helene.engine import Engine, recordings
from helene.engine.batches import Layout
from helene.engine.gradients import GradientEngine
from helene.engine.groups import GroupEngine
from helene.engine.spreads import SpreadEngine
from helene.engine.tangents import TangentEngine

OWN = [(SGD, GradientEngine), (ForwardGrad, TangentEngine), (FZOO, SpreadEngine)]


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
