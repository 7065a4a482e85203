"""Updates that are launched before the host has read the losses, on a GPU that is behind the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from kernel_updates import CASES, Held, everything, net_of, stepped

import helene
from helene import functional
from helene.kernels.control import Control
from helene.steps.fused import launches

pytestmark = pytest.mark.gpu

CYCLES = 200_000_000  # some 0.1 s of a GPU


def test_neither_waits_for_the_other(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The update is launched while the device is at the forwards, and the step returns while it is at the update."""
    from helene.kernels import launch

    held, busy = Held(helene.MeZO, device), list[bool]()
    for _ in range(5):  # kernels are compiled, and the next step looks at nothing
        held.step()
    update = launch.update

    def long(*args: Any, **more: Any) -> None:
        busy.append(not torch.cuda.current_stream().query())
        update(*args, **more)
        torch.cuda._sleep(CYCLES)

    def closure() -> torch.Tensor:
        torch.cuda._sleep(CYCLES)
        return net_of(held.net)

    monkeypatch.setattr(launch, "update", long)
    torch.cuda.synchronize()
    held.optimizer.step(closure)
    busy.append(not torch.cuda.current_stream().query())
    assert busy == [True, True]


@pytest.mark.parametrize("case", CASES)
def test_the_bits_are_those_of_an_update_that_the_host_makes_c_for(
    device: torch.device, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parameters, state, statistics, recorded scalars, losses; the last step has a learning rate of its own."""
    method, dtype, options = CASES[case]
    ahead = stepped(method, device, dtype, options)
    assert launches.kernel_ahead(ahead.optimizer, ahead.optimizer.plan()) is not None
    monkeypatch.setattr(launches, "kernel_ahead", lambda *_: None)
    assert everything(ahead) == everything(stepped(method, device, dtype, options))


def test_the_device_computes_the_hosts_slope(device: torch.device) -> None:
    """To the bit of float64, and of the float32 that kernels read."""
    control, generator = Control(device), torch.Generator().manual_seed(0)
    for eps in (1e-3, 3e-4, 0.1, 1e-12):
        for losses in torch.randn(200, 2, generator=generator).double() * 3:
            control.send((1, 2, 3), eps)
            slope, fine = control.take(losses.to(device))
            expected = functional.projected_gradient(*losses.tolist(), eps)
            assert slope.item() == expected
            assert fine.item()
            assert control.values[1:3].tolist() == [float(np.float32(expected)), 1.0]


@pytest.mark.parametrize("method", [helene.MeZO, helene.Helene])
@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (torch.nan, "the loss is nan; parameters and state are unchanged"),
        (torch.inf, "the loss is inf; parameters and state are unchanged"),
    ],
)
def test_what_is_not_finite_moves_nothing(device: torch.device, method: Any, factor: float, words: str) -> None:
    """Though its update was launched; the next step is that of a twin who never saw it."""
    held, twin = Held(method, device), Held(method, device)
    for _ in range(4):
        held.step()
        twin.step()
    before = everything(held)
    assert launches.kernel_ahead(held.optimizer, held.optimizer.plan()) is not None
    with pytest.raises(FloatingPointError, match=words):
        held.optimizer.step(lambda: net_of(held.net) * factor)
    assert everything(held) == before
    held.step()
    twin.step()
    assert everything(held) == everything(twin)


def test_parameters_on_two_devices() -> None:
    """Each makes c of the same losses."""
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    made = []
    for ahead in (True, False):
        torch.manual_seed(0)
        lower, upper = torch.nn.Linear(3, 8).to("cuda:0"), torch.nn.Linear(8, 2).to("cuda:1")
        net = torch.nn.ModuleList([lower, upper])
        optimizer = helene.MeZO(net.named_parameters(), 1e-2, model=net)
        x = torch.linspace(-1.0, 1.0, 12, device="cuda:0").view(4, 3)
        with pytest.MonkeyPatch.context() as patched:
            if not ahead:
                patched.setattr(launches, "kernel_ahead", lambda *_: None)
            for _ in range(6):
                optimizer.step(lambda a=lower, b=upper, x=x: b(torch.tanh(a(x)).to("cuda:1")).square().mean())
        made.append([p.detach().cpu() for p in net.parameters()])
    assert all(map(torch.equal, *made))
