"""Steps of FZOO on a CPU: one recorded forward, its calls made anew for each loss, against ``optimizer.step``."""

from __future__ import annotations

import copy
from importlib.util import find_spec

import pytest
import torch
from engine_models import TiedModel, batch_of, loss
from torch import nn

from helene import FZOO
from helene.engine import recordings, spreads
from helene.engine.spreads import SpreadEngine
from helene.evaluation.blocks import Block
from helene.kernels.backend import VARIABLE

LR = 1e-2


def made(dtype=torch.float32, with_model=True, capture="repeat", **options):
    torch.manual_seed(0)
    model = TiedModel(depth=2).to(dtype)
    twin = copy.deepcopy(model)
    more = {"rounding": "stochastic", **options}
    first, second = (
        FZOO(m.named_parameters(), LR, **more, **({"model": m} if with_model else {})) for m in (model, twin)
    )
    return model, twin, SpreadEngine(model, first, loss, capture=capture), second


def agree(model, twin, engine, second):
    assert all(map(torch.equal, model.parameters(), twin.parameters()))
    assert engine.optimizer.steps_made == second.steps_made


@pytest.mark.filterwarnings("ignore:.*copied for the whole forward")
@pytest.mark.parametrize("with_model", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_recorded_losses_give_the_optimizers_steps(dtype, with_model):
    """Two shapes; lr, eps, N and the trained parameters change on the way; parameters stay in their own memory."""
    model, twin, engine, second = made(dtype, with_model, num_directions=3)
    modes, places = [], [p.data_ptr() for p in model.parameters()]
    for step in range(1, 17):
        for each, optimizer in ((model, engine.optimizer), (twin, second)):
            each.blocks[0].requires_grad_(step < 13)
            group = optimizer.param_groups[0]
            group["lr"], group["eps"] = (LR, 1e-4) if step < 7 else (LR / 2, 1e-3)
            group["num_directions"] = 3 if step < 10 else 2
        batch = batch_of(step, rows=4 if step % 3 else 6)
        ours, theirs = engine.step(batch), second.step(lambda batch=batch: loss(twin, batch))
        modes.append(engine.mode)
        assert torch.equal(ours, theirs), step
        agree(model, twin, engine, second)
    # Steps 1, 2, 4, 8 and 16 look whether the loss draws. What is recorded holds for one N and one set of parameters.
    assert [step for step, mode in enumerate(modes, 1) if mode == "graph"] == [5, 6, 7, 9, 11, 14]
    assert [p.data_ptr() for p in model.parameters()] == places


def test_one_forward_is_recorded_for_all_losses(monkeypatch):
    _, _, engine, _ = made()
    for step in (1, 2):
        engine.step(batch_of(step))
    prepared, place = [], []
    forward = engine._forward

    def watched(batch):
        compute = forward(batch)
        prepared.append(compute)
        return lambda: (place.append(id(batch)), compute())[1]

    monkeypatch.setattr(engine, "_forward", watched)
    for step in (3, 5):
        engine.optimizer.param_groups[0]["step"] = step - 1
        engine.step(batch_of(step))
        assert engine.mode == "graph"
    assert len(prepared) == 1
    assert len(place) == 2 * 9
    assert len(set(place)) == 1


def test_the_forward_reads_copies_that_stay_where_they_are():
    """Whatever the direction, and at theta; the plain steps between leave them there."""
    model, _, engine, _ = made()
    seen = set()

    def noting(module, batch):
        if engine._recordings.mode == "graph" or engine._copies is not None:
            seen.add(tuple(p.data_ptr() for p in module.parameters()))
        return loss(module, batch)

    engine.loss = noting
    for step in range(1, 8):
        seen.clear()
        engine.step(batch_of(step))
        if engine.mode == "graph":
            copies = tuple(view.data_ptr() for view in engine._copies._block.views[1].values())
            assert seen == {copies}
    assert engine.mode == "graph"
    assert not set(copies) & {p.data_ptr() for p in model.parameters()}


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("where", ["loss", "write", "restore"])
def test_an_error_in_a_recorded_step_leaves_all_as_it_was(where, error, monkeypatch):
    """In the forward, while parameters are copies; while a copy is written; while they are pointed back."""
    model, twin, engine, second = made()
    for step in range(1, 6):
        engine.step(batch_of(step))
        second.step(lambda step=step: loss(twin, batch_of(step)))
    assert engine.mode == "graph"
    kept, places = copy.deepcopy(model.state_dict()), [p.data_ptr() for p in model.parameters()]
    calls = []

    def fails(original):
        def failing(*args):
            calls.append(1)
            if len(calls) == 4:
                raise error("in the midst")
            return original(*args)

        return failing

    with monkeypatch.context() as patch:
        if where == "loss":
            patch.setattr(engine, "loss", fails(loss))
        elif where == "write":
            patch.setattr(Block, "write", fails(Block.write))
        else:
            patch.setattr(spreads._Copies, "_point", fails(spreads._Copies._point))
        with pytest.raises(error, match="in the midst"):
            engine.step(batch_of(6))
    assert [p.data_ptr() for p in model.parameters()] == places
    assert all(torch.equal(kept[name], value) for name, value in model.state_dict().items())
    for step in (6, 7):
        engine.step(batch_of(step))
        second.step(lambda step=step: loss(twin, batch_of(step)))
        assert engine.mode == "graph"
    agree(model, twin, engine, second)


def test_weights_cast_by_autocast_are_not_those_of_a_copy():
    model, twin, engine, second = made()
    with torch.autocast("cpu", torch.bfloat16):
        for step in range(1, 8):
            batch = batch_of(step)
            ours, here = engine.step(batch), model(batch["ids"])
            assert torch.equal(ours, second.step(lambda batch=batch: loss(twin, batch)))
            assert torch.equal(here, twin(batch["ids"])), step
    assert engine.mode == "graph"
    agree(model, twin, engine, second)


def test_steps_may_be_made_in_inference_mode():
    model, twin, engine, second = made()
    for step in range(1, 8):
        with torch.inference_mode(step in (2, 3, 6)):
            engine.step(batch_of(step))
        second.step(lambda step=step: loss(twin, batch_of(step)))
    assert engine.mode == "graph"
    agree(model, twin, engine, second)


def test_a_loaded_state_goes_on():
    model, twin, engine, second = made()
    for step in range(1, 8):
        if step == 6:
            engine.optimizer.load_state_dict(copy.deepcopy(engine.optimizer.state_dict()))
        engine.step(batch_of(step))
        second.step(lambda step=step: loss(twin, batch_of(step)))
    assert (engine.mode, engine.reason) == ("graph", "")
    agree(model, twin, engine, second)


def test_a_loss_that_draws_is_refused():
    model, _, engine, _ = made()
    model.dropout.p = 0.1
    with pytest.raises(ValueError, match="draws random numbers"):
        engine.step(batch_of(1))


def test_a_loss_that_writes_parameters_is_refused_when_it_is_recorded():
    model, _, engine, _ = made()
    for step in range(1, 5):
        engine.step(batch_of(step))
    engine.loss = lambda m, b: (m.scale.detach().add_(1.0), loss(m, b))[1]
    kept = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match="the closure changes parameters"):
        engine.step(batch_of(5))
    assert all(torch.equal(kept[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda model: model.head.compile(backend="eager"), "the model is compiled"),
        (lambda model: setattr(model, "more", nn.Linear(1, 1, device="meta")), "parameters are on several devices"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*copied for the whole forward")
def test_what_cannot_be_captured_is_stepped_plainly(change, reason):
    torch.manual_seed(0)
    model = TiedModel(depth=1)
    twin = copy.deepcopy(model)
    params = [dict(m.named_parameters()) for m in (model, twin)]
    change(model)
    first, second = (FZOO(p.items(), LR) for p in params)
    engine = SpreadEngine(model, first, loss, capture="repeat")
    for step in range(1, 6):
        engine.step(batch_of(step))
        second.step(lambda step=step: loss(twin, batch_of(step)))
        assert engine.mode == "plain"
        assert engine.reason.startswith(reason)
    assert engine._copies is None
    assert all(torch.equal(a, b) for a, b in zip(*(p.values() for p in params), strict=True))


def test_without_a_graph_nothing_is_copied():
    """Memory for all parameters is held where a recording reads it, not before."""
    _, _, engine, _ = made(capture=True)
    for step in range(1, 6):
        engine.step(batch_of(step))
    assert (engine.mode, engine.reason) == ("plain", "no CUDA device")
    assert engine._copies is None


@pytest.mark.skipif(torch.cuda.is_available() or find_spec("triton") is None, reason="for Triton's interpreter")
def test_copies_are_written_by_the_kernel_where_it_is(monkeypatch):
    """In the interpreter; a parameter that is not contiguous is written by torch's operations."""
    monkeypatch.setenv(VARIABLE, "triton")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    model[0].weight.data = model[0].weight.data.t().contiguous().t()
    twin = copy.deepcopy(model)
    first, second = (FZOO(m.named_parameters(), LR, model=m, num_directions=2) for m in (model, twin))
    engine = SpreadEngine(model, first, lambda m, x: m(x).square().mean(), capture="repeat")
    for step in range(1, 7):
        x = torch.full((2, 4), float(step))
        assert torch.equal(engine.step(x), second.step(lambda x=x: twin(x).square().mean()))
        agree(model, twin, engine, second)
    assert engine.mode == "graph"
    assert len(engine._copies._block._launches) == 1
    assert engine._copies._control is not None


def test_copies_are_given_up_where_the_forward_cannot_be_captured(monkeypatch):
    """The graph is a stand-in, and so is torch's error; steps go on without, and hold no copies."""
    for name in ("CUDAGraph", "graph_pool_handle", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: object())
    capturing = []

    def refusing(*_):
        capturing.append(engine._copies is not None)
        raise RuntimeError("not while it is captured")

    monkeypatch.setattr(recordings, "capturing", refusing)
    monkeypatch.setattr(recordings, "give_up", lambda *_: None)
    model, twin, engine, second = made(capture=True)
    engine._recordings._refused = ""
    for step in range(1, 7):
        engine.step(batch_of(step))
        second.step(lambda step=step: loss(twin, batch_of(step)))
    assert capturing == [True]
    assert engine.reason == "its forward cannot be captured: not while it is captured"
    assert engine._copies is None
    agree(model, twin, engine, second)
