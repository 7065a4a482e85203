"""Captured gradients, tangents, losses on a GPU against ``optimizer.step``; estimates of h by a captured backward."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from kernel_updates import watch_launches

from helene import FZOO, SGD, Adam, AdamW, ForwardGrad, Helene
from helene.engine import Engine
from helene.engine.gradients import GradientEngine
from helene.engine.spreads import SpreadEngine
from helene.engine.tangents import TangentEngine
from tests.optimizers.groups.grouped_models import gemma, llama_tied, lora, losses, made, opt, tokens_of

pytestmark = pytest.mark.gpu

HELENE = {"anneal_horizon": 100, "batch_size": 6, "interval": 2, "curvature": "backprop", "eps": 1e-2}


def batch_of(step: int, length: int = 5) -> dict[str, Any]:
    return tokens_of(step, length, "cuda")


def loss(model: Any, batch: dict[str, Any]) -> torch.Tensor:
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    return losses(model, inputs | {"use_cache": False}, batch["labels"]).float().mean()


def moved(model: Any, start: dict[str, Any]) -> torch.Tensor:
    return torch.cat([(p.detach() - start[n]).flatten().double() for n, p in model.named_parameters()])


def compare(make: Any, engine_of: Any, method: Any, options: dict[str, Any], share: float, captured: int = 6) -> None:
    """Ten steps of two shapes in float32; weights differ by a share of what they have moved, in the mean."""
    model = made(make, torch.float32).cuda()
    twin, start = copy.deepcopy(model), {n: p.detach().clone() for n, p in model.named_parameters()}
    more = {"model": model} if "model" in options else {}
    first = method(model.named_parameters(), **{**options, **more})
    second = method(twin.named_parameters(), **{**options, **({"model": twin} if more else {})})
    engine, modes = engine_of(model, first, loss), []
    for step in range(1, 11):
        batch = batch_of(step, 8 if step % 2 else 5)
        ours, theirs = engine.step(batch), second.step(lambda batch=batch: loss(twin, batch))
        modes.append(engine.mode)
        torch.testing.assert_close(ours.double(), theirs.double(), rtol=1e-4, atol=1e-5)
    engine.flush()
    assert modes.count("graph") >= captured, (modes, engine.reason)
    mine, other = moved(model, start), moved(twin, start)
    assert other.norm() > 0
    assert (mine - other).norm() <= share * other.norm()


@pytest.mark.parametrize("make", [gemma, opt, llama_tied, lora], ids=lambda m: m.__name__)
@pytest.mark.parametrize(("method", "options"), [(SGD, {"lr": 0.1}), (Adam, {"lr": 1e-3})])
def test_captured_gradients_give_the_plain_steps(make: Any, method: Any, options: dict[str, Any]) -> None:
    """An Adam step divides by the gradient's size, so elements near 0 turn."""
    compare(make, GradientEngine, method, options, 1e-4 if method is SGD else 0.05)


@pytest.mark.parametrize("make", [gemma, opt, llama_tied, lora], ids=lambda m: m.__name__)
def test_captured_tangents_give_the_plain_steps(make: Any) -> None:
    compare(make, TangentEngine, ForwardGrad, {"lr": 1e-3}, 1e-3, captured=4)  # steps 1, 2, 4, 8 are plain


@pytest.mark.parametrize("model", [False, True], ids=["full-copies", "by-module"])
@pytest.mark.parametrize("make", [gemma, opt, llama_tied, lora], ids=lambda m: m.__name__)
def test_captured_losses_give_the_plain_steps(make: Any, model: bool) -> None:
    """Losses of about 4 that differ by 2^-21 of themselves, a spread of 3e-3 and more: under 1e-3 of a weight each."""
    options = {"lr": 1e-3, "eps": 1e-2, **({"model": True} if model else {})}
    compare(make, SpreadEngine, FZOO, options, 2e-3, captured=4)


def test_a_captured_loss_is_that_of_the_copies_of_its_replay() -> None:
    """The mean of a parameter's elements: theta is 0, so each loss is that of eps z, and theta stays 0 with lr 0."""
    model = torch.nn.Linear(1000, 3, bias=False).cuda()
    torch.nn.init.zeros_(model.weight)
    optimizer = FZOO(model.named_parameters(), 0.0, eps=0.5, model=model)
    engine, told = SpreadEngine(model, optimizer, lambda m, x: m(x).mean()), []
    note = optimizer.resolution.note
    optimizer.resolution.note = lambda values, *rest: (told.append(values), note(values, *rest))[1]  # type: ignore[method-assign]
    for step in range(1, 8):
        loss = engine.step(torch.ones(2, 1000, device="cuda"))
        sums = [optimizer.direction(optimizer.foresee()._replace(step=step), d) for d in range(8)]
        target = optimizer.targets[0]
        expected = [0.5 * z.chunk(target.id, 0, 3000, target.tensor.device).sum().item() / 3 for z in sums]
        assert told[-1] == pytest.approx(expected, rel=1e-6, abs=1e-6)
        assert loss.item() == 0.0
    assert (engine.mode, engine.reason) == ("graph", "")
    assert not model.weight.any()


@pytest.mark.parametrize("make", [gemma, opt], ids=lambda m: m.__name__)
def test_estimates_by_a_captured_backward_give_the_plain_steps(make: Any) -> None:
    compare(make, Engine, Helene, {"lr": 1e-4, "model": True, **HELENE}, 0.02)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        (Adam, {"lr": lambda step: 1e-3 / step}),
        (SGD, {"lr": lambda step: 0.1 / step, "momentum": 0.9}),
        (AdamW, {"lr": lambda step: 1e-3 / step, "rounding": "stochastic"}),
    ],
)
def test_replayed_gradients_move_by_one_kernel(
    method: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An lr that changes each step: a launch a step, and the host waits once, to learn whether all is finite."""
    launched = watch_launches(monkeypatch)
    model = made(gemma, torch.bfloat16 if "rounding" in options else torch.float32).cuda()
    engine = GradientEngine(model, method(model.named_parameters(), **options), loss)
    for step in range(1, 11):  # step 8 is the last that looks at rounding
        engine.step(batch_of(step))
    batch = batch_of(11)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            engine.step(batch)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert engine.mode == "graph", engine.reason
    assert len(launched) == 10
    assert all(tiles is launched[0] for tiles in launched)
    waits = [str(w.message) for w in said if "called a synchronizing" in str(w.message)]
    assert len(waits) == 1, waits


def test_shapes_share_the_gradient_that_is_kept() -> None:
    """Four shapes of 64 MiB of weights: the second to fourth hold less than half of a gradient more."""
    model = torch.nn.Linear(4096, 4096, bias=False).cuda()
    engine = GradientEngine(model, SGD(model.parameters(), lr=0.1), lambda m, x: m(x).square().mean())
    held = []
    for rows in (5, 6, 7, 8):
        for _ in range(2):
            engine.step(torch.ones(rows, 4096, device="cuda"))
        assert engine.mode == "graph", engine.reason
        held.append(torch.cuda.memory_allocated())
    assert max(held[1:]) - held[0] < model.weight.nbytes / 2
