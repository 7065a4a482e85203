"""Updates that are launched before the host has read the losses, their kernels in Triton's interpreter."""

from __future__ import annotations

import importlib.util
import signal
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

if torch.cuda.is_available() or importlib.util.find_spec("triton") is None:
    pytest.skip("for machines with triton and no GPU", allow_module_level=True)

from kernel_updates import CASES, Held, everything, net_of, stepped

import helene
from helene import functional
from helene.evaluation import losses, probe
from helene.evaluation.losses import Arriving
from helene.kernels import launch
from helene.kernels.control import Control
from helene.steps.fused import launches
from helene.steps.resolution import ResolutionWatch

CPU = torch.device("cpu")
LOOKS = 1, 2, 4  # steps that look what the loss reads, and wait before they move


@pytest.fixture(autouse=True)
def _kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels on the CPU; losses there may be anything, as on a GPU; Ctrl-C is heard also where tests run behind."""
    monkeypatch.setenv("HELENE_KERNELS", "triton")

    def as_loss(value: Any) -> Tensor:
        return losses.one_number(value.detach(), "the closure")

    monkeypatch.setattr(probe, "as_loss", as_loss)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def _logged(monkeypatch: pytest.MonkeyPatch, said: list[str], hook: Callable[[str], None] = lambda _: None) -> None:
    """Have launches and waits told, each after it was made."""
    for owner, name in ((launch, "update"), (Arriving, "values"), (helene.MeZO, "note")):
        real = getattr(owner, name)

        def told(*args: Any, real: Any = real, name: str = name, **more: Any) -> Any:
            made = real(*args, **more)
            said.append(name)
            hook(name)
            return made

        monkeypatch.setattr(owner, name, told)


def test_the_update_is_launched_before_the_losses_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """But in the steps that look what the loss reads."""
    held, said = Held(helene.MeZO, CPU), list[str]()
    _logged(monkeypatch, said)
    for step in range(1, 6):
        held.step()
        assert said == (["update"] if step in LOOKS else ["update", "values", "note"]), step
        said.clear()


@pytest.mark.parametrize("case", CASES)
def test_the_bits_are_those_of_an_update_that_the_host_makes_c_for(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters, state, statistics, recorded scalars, losses; the last step has a learning rate of its own."""
    method, dtype, options = CASES[case]
    ahead = stepped(method, CPU, dtype, options)
    monkeypatch.setattr(launches, "kernel_ahead", lambda *_: None)
    assert everything(ahead) == everything(stepped(method, CPU, dtype, options))


def test_the_device_computes_the_hosts_slope() -> None:
    """To the bit of float64, and of the float32 that kernels read."""
    control, generator = Control(CPU), torch.Generator().manual_seed(0)
    for eps in (1e-3, 3e-4, 0.1, 1e-12):
        for losses_at in torch.randn(50, 2, generator=generator).double() * 3:
            control.send((1, 2, 3), eps)
            slope, fine = control.take(losses_at)
            plus, minus = losses_at.tolist()
            expected = functional.projected_gradient(plus, minus, eps)
            assert slope.item() == expected
            assert fine
            assert control.values[1:3].tolist() == [float(np.float32(expected)), 1.0]


BROKEN = {
    "nan": (torch.tensor([0.5, torch.nan]), "the loss is nan; parameters and state are unchanged"),
    "inf": (torch.tensor([torch.inf, 0.5]), "the loss is inf; parameters and state are unchanged"),
    "slope": (torch.tensor([1e308, -1e308], dtype=torch.float64), "of finite losses are not finite"),
}


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("method", [helene.MeZO, helene.Helene])
def test_what_is_not_finite_moves_nothing(method: Any, broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though its update was launched; the next step is that of a twin who never saw it."""
    held, twin = Held(method, CPU), Held(method, CPU)
    for _ in range(2):
        held.step()
        twin.step()
    before, said = everything(held), list[str]()
    _logged(monkeypatch, said)
    values, words = BROKEN[broken]
    with pytest.raises(FloatingPointError, match=words):
        held.optimizer.step(_giving(values, held.net))
    assert said[:2] == ["update", "values"]
    assert "note" not in said
    assert everything(held) == before
    held.step()
    twin.step()
    assert everything(held) == everything(twin)


def _giving(values: Tensor, net: nn.Module) -> Callable[[], Tensor]:
    """A closure that reads the parameters and gives these losses in turn."""
    left = list(values)

    def closure() -> Tensor:
        net_of(net)
        return left.pop(0)

    return closure


@pytest.mark.parametrize(
    ("after", "finite"), [("update", True), ("values", True), ("note", True), ("update", False), ("values", False)]
)
def test_ctrl_c_finds_the_step_made_or_not_begun(after: str, finite: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Struck after the launch, the wait or the count, it comes when weights and counter agree."""
    held, twin = Held(helene.MeZO, CPU), Held(helene.MeZO, CPU)
    for _ in range(2):
        held.step()
        twin.step()
    closure = held.closure if finite else _giving(BROKEN["nan"][0], held.net)
    with monkeypatch.context() as patched:
        _logged(patched, [], lambda name: signal.raise_signal(signal.SIGINT) if name == after else None)
        with pytest.raises(KeyboardInterrupt):
            held.optimizer.step(closure)
    if finite:
        twin.optimizer.step(twin.closure)
    assert everything(held) == everything(twin)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_warning_that_is_an_error_finds_the_step_made(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(helene.MeZO, CPU)
    for _ in range(2):
        held.step()
    kept = [p.detach().clone() for p in held.net.parameters()]

    def warn(*_: Any, **__: Any) -> bool:
        raise UserWarning("too coarse")

    monkeypatch.setattr(ResolutionWatch, "warn", warn)
    with pytest.raises(UserWarning, match="too coarse"):
        held.step()
    assert held.optimizer.steps_made == held.optimizer.statistics.count == len(held.optimizer.trajectory) == 3
    assert not any(map(torch.equal, kept, held.net.parameters()))


@pytest.mark.parametrize(
    ("method", "options"),
    [
        (helene.MeZO, {"num_directions": 2}),
        (helene.MeZO, {"distribution": "sphere"}),
        (helene.ZOScalarSign, {}),  # c itself is not what it moves by
        (helene.ZOConservative, {}),  # other forwards follow
        (helene.Helene, {"anneal_horizon": 9, "batch_size": 4, "curvature": "backprop", "interval": 1}),
        (helene.Helene, {"anneal_horizon": 9, "batch_size": 4, "interval": 1, "floor": helene.QuantileFloor(0.5)}),
    ],
)
def test_other_steps_wait_first(method: Any, options: dict[str, Any]) -> None:
    optimizer = method(nn.Linear(3, 2).named_parameters(), 1e-2, **options)
    assert launches.kernel_ahead(optimizer, optimizer.plan()) is None


def test_a_source_that_needs_a_closure_asks_for_it_at_every_step() -> None:
    """Also at those that estimate nothing."""
    options = {"anneal_horizon": 9, "batch_size": 4, "curvature": "spsa_own_batch", "interval": 10}
    held = Held(helene.Helene, CPU, options=options)
    closure = held.closure
    for _ in range(2):
        held.optimizer.step(closure, closure)
    assert launches.kernel_ahead(held.optimizer, held.optimizer.plan()) is not None
    with pytest.raises(ValueError, match="curvature_closure"):
        held.optimizer.step(closure)
    assert held.optimizer.steps_made == 2
