"""A step's update by torch and by the fused kernels, from state that is already there; steps and all they change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

import helene
from helene import Trajectory, noise
from helene.rules import storage
from helene.steps import chunkwise
from helene.steps.fused import launches, methods


def with_state(
    cls: Any, shapes: Sequence[tuple[int, ...]], dtype: torch.dtype, device: torch.device | str, **options: Any
) -> Any:
    """An optimizer of two layers whose state has elements of many sizes; the first two shapes are the first layer."""
    generator = torch.Generator().manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(s, generator=generator).to(dtype).to(device)) for s in shapes]
    optimizer = cls([{"params": params[:2]}, {"params": params[2:]}], lr=1e-2, **options)
    plan = optimizer.plan()
    for target in optimizer.targets:
        state = optimizer.allocate(target, plan.rules[target.layer], plan.storage[target.layer])
        for name in optimizer.state_names:
            size = target.tensor.numel()
            value = torch.randn(size, generator=generator) * 10.0 ** torch.randint(-4, 1, (size,), generator=generator)
            value = value.abs() if name in storage.NONNEGATIVE else value
            words = noise.words(1, 1, 0, 1, 0, size).to(device) if storage.is_rounded(state, name) else None
            for sink, stored in storage.writes(state, name, slice(0, size), value.to(device), words):
                sink.copy_(stored)
    return optimizer


def by_torch(optimizer: Any, scalars: list[float]) -> None:
    """A step's update, given what it measured, by torch's own operations."""
    plan = optimizer.plan()
    gradient = plan.measurement.gradient(optimizer, plan, scalars, None)
    estimate = plan.source and plan.source.estimate(optimizer, plan, gradient, [], None)
    with torch.no_grad():
        chunkwise.Moves(optimizer, plan, None, gradient, estimate).make()
    optimizer.note(plan, scalars)


def by_kernels(optimizer: Any, scalars: list[float]) -> None:
    """The same by the fused kernel."""
    plan = optimizer.plan()
    method: Any = methods.fused(plan, optimizer.targets)
    launches.Launches(optimizer, plan, method, plan.measurement.weights(plan, scalars)).make()
    optimizer.note(plan, scalars)


FULL = {"anneal_horizon": 9, "batch_size": 4, "interval": 2, "weight_decay": 0.1}

# method, dtype of the parameters, options
CASES: dict[str, tuple[Any, torch.dtype, dict[str, Any]]] = {
    "mezo": (helene.MeZO, torch.float32, {}),
    "bfloat16": (helene.MeZO, torch.bfloat16, {"weight_decay": 0.1, "rounding": "stochastic"}),
    "one-sided": (helene.MeZO, torch.float32, {"two_sided": False}),
    "signs": (helene.MeZO, torch.float32, {"distribution": "rademacher", "eps": 3e-4}),
    "momentum": (helene.ZOMomentum, torch.float32, {}),
    "helene": (helene.Helene, torch.float32, FULL),
    "helene, narrow": (helene.Helene, torch.bfloat16, {**FULL, "state_dtype": "8bit", "rounding": "stochastic"}),
}


def net_of(net: nn.Module) -> Tensor:
    """Its mean square on a fixed batch, in float32."""
    p = next(net.parameters())
    return net(torch.linspace(-1.0, 1.0, 12, device=p.device).view(4, 3).to(p.dtype)).float().square().mean()


class Held:
    """A model, its recorded optimizer, and what its steps gave."""

    def __init__(
        self,
        method: Any,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        options: dict[str, Any] | None = None,
    ) -> None:
        torch.manual_seed(0)
        self.net = nn.Linear(3, 2).to(device, dtype)
        usual = FULL if method is helene.Helene else {}
        given = usual if options is None else options
        self.optimizer = method(self.net.named_parameters(), 1e-2, model=self.net, seed=3, **given)
        self.losses: list[Tensor] = []
        if self.optimizer.replayable:
            Trajectory.record(self.optimizer)

    def closure(self) -> Tensor:
        return net_of(self.net)

    def step(self) -> None:
        self.losses.append(self.optimizer.step(self.closure))


def stepped(method: Any, device: torch.device, dtype: torch.dtype, options: dict[str, Any]) -> Held:
    """Five steps; the last has a learning rate of its own."""
    held = Held(method, device, dtype, options)
    for lr in (1e-2, 1e-2, 1e-2, 1e-2, 2e-2):
        for group in held.optimizer.param_groups:
            group["lr"] = lr
        held.step()
    return held


def everything(held: Held) -> dict[str, Any]:
    """All that a step changes, each tensor as its bytes."""
    optimizer = held.optimizer
    state = [(name, _bytes(t)) for p in held.net.parameters() for name, t in optimizer.state.get(p, {}).items()]
    recorded = optimizer.trajectory
    return {
        "parameters": [_bytes(p) for p in held.net.parameters()],
        "state": state,
        "steps": [group["step"] for group in optimizer.param_groups],
        "statistics": repr(vars(optimizer.statistics)),
        "recorded": recorded and (list(recorded.scalars), {k: list(v) for k, v in recorded.changing.items()}),
        "losses": [_bytes(loss) for loss in held.losses],
    }


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
