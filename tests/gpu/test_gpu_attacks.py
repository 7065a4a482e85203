"""On a GPU: captured steps of models that could give another z than the engine thinks, and several devices."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from engine_models import TiedModel, batch_of, loss
from test_engine_attacks import Borrower, Keeper, Lender, Routed
from torch import Tensor, nn

from helene import Helene, MeZO
from helene.engine import Engine

pytestmark = pytest.mark.gpu

SMALL: dict[str, Any] = {"scratch_bytes": 1 << 15, "unit_bytes": 3000}


def _batch(step: int, device: str = "cuda") -> dict[str, Tensor]:
    return {name: value.to(device) for name, value in batch_of(step).items()}


def _engine(model: nn.Module, **options: Any) -> Engine:
    optimizer = MeZO(model.named_parameters(), lr=1e-3, seed=5, model=model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Engine(model, optimizer, loss, **{**SMALL, **options})


def _check(model: nn.Module, steps: int = 8, device: str = "cuda") -> Engine:
    """Against full copies, float32: the forwards are the same operations, so only cuBLAS's choices differ."""
    twin = copy.deepcopy(model)
    reference = MeZO(twin.named_parameters(), lr=1e-3, seed=5)
    engine = _engine(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in range(steps):
            batch = _batch(step, device)
            mine, theirs = engine.step(batch), reference.step(lambda b=batch: loss(twin, b))
            assert float(mine) == pytest.approx(float(theirs), rel=1e-4)
        engine.flush()
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    return engine


@pytest.mark.parametrize("kind", ["itself", "view", "row"])
def test_a_weight_that_is_given_away(kind: str) -> None:
    torch.manual_seed(0)
    assert _check(Lender(kind).cuda()).mode == "graph"


def test_weights_that_other_modules_read() -> None:
    torch.manual_seed(0)
    assert _check(Borrower().cuda()).mode == "graph"


def test_modules_that_run_at_some_steps_only() -> None:
    torch.manual_seed(0)
    engine = _check(Routed().cuda())
    assert engine.mode == "eager"
    assert "cannot be captured" in engine.reason


def test_forwards_that_disturb_each_other_are_refused() -> None:
    torch.manual_seed(0)
    with pytest.raises(ValueError, match="disturb each other"):
        _engine(Keeper().cuda()).step(_batch(0))


@pytest.mark.parametrize("change", ["frozen", "module", "hook"])
def test_a_model_that_changes_after_the_capture_is_captured_again(change: str) -> None:
    """A graph would go on with what it saw: the new weights or hook would have no effect."""
    torch.manual_seed(0)
    model = TiedModel().cuda()
    model.head = nn.Linear(16, 100, device="cuda").requires_grad_(False)
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    optimizer = MeZO(named, lr=0.0, model=model)
    engine = Engine(model, optimizer, loss, **SMALL)
    batch = _batch(0)
    for _ in range(3):
        before = float(engine.step(batch))
    assert engine.mode == "graph"
    if change == "frozen":
        model.head.weight.data = 5.0 * model.head.weight.detach()
    elif change == "module":
        model.head = nn.Linear(16, 100, device="cuda").requires_grad_(False)
    else:
        model.blocks[0].register_forward_hook(lambda module, args, output: 2.0 * output)
    for mode in ("eager", "graph", "graph"):
        after = float(engine.step(batch))
        assert engine.mode == mode
        with torch.no_grad():
            assert after == pytest.approx(float(loss(model, batch)), abs=2e-3)
        assert abs(after - before) > 1e-2


def test_a_model_on_a_device_that_is_not_the_current_one() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    torch.manual_seed(0)
    assert _check(TiedModel().to("cuda:1"), device="cuda:1").mode == "graph"
    assert torch.cuda.current_device() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_on_two_devices_has_the_trajectory_of_one(dtype: torch.dtype) -> None:
    """In bfloat16 too, where each step's rounding watch and stochastic rounding are at work."""
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")

    def move(device: str) -> Any:
        return lambda module, args: tuple(x.to(device) for x in args)

    results = []
    for spread in (False, True):
        torch.manual_seed(0)
        model = TiedModel().to("cuda:0", dtype)
        if spread:
            for block in list(model.blocks)[1:]:
                block.to("cuda:1")
                block.register_forward_pre_hook(move("cuda:1"))
            model.head.register_forward_pre_hook(move("cuda:0"))
            model.blocks[-1].register_forward_hook(lambda module, args, output: output.to("cuda:0"))
        options: dict[str, Any] = {"anneal_horizon": 100, "batch_size": 4, "rounding": "stochastic"}
        optimizer = Helene(model.named_parameters(), lr=1e-2, seed=5, model=model, **options)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            engine = Engine(model, optimizer, loss, **SMALL)
            losses = [float(engine.step(_batch(step, "cuda:0"))) for step in range(6)]
        assert engine.mode == ("plain" if spread else "graph")
        assert not spread or engine.reason == "parameters are on several devices"
        results.append((losses, [p.detach().cpu() for p in model.parameters()]))
    assert results[1][0] == pytest.approx(results[0][0], rel=1e-4 if dtype == torch.float32 else 2e-2)
    for a, b in zip(results[0][1], results[1][1], strict=True):
        assert a.shape == b.shape
        if dtype == torch.float32:
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
