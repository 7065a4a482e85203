"""A step's update by torch and by the fused kernels, from state that is already there, and the launches it takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from helene import SGD, Adam, AdamW, Lion, noise
from helene.evaluation.curvature import KeptGradient
from helene.rules import storage
from helene.steps import chunkwise
from helene.steps.fused import launches, methods

FIRST_ORDER: list[Any] = [
    (SGD, {}),
    (SGD, {"weight_decay": 0.1, "momentum": 0.9}),
    (Adam, {"weight_decay": 0.1}),
    (AdamW, {"weight_decay": 0.1}),
    (Lion, {"weight_decay": 0.1}),
]


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


def gradients_of(optimizer: Any, step: int) -> KeptGradient:
    """A gradient of many sizes, the same for all optimizers of the same parameters."""
    generator, made = torch.Generator().manual_seed(step), KeptGradient()
    for target in optimizer.targets:
        size = target.tensor.shape
        value = torch.randn(size, generator=generator) * 10.0 ** torch.randint(-3, 1, size, generator=generator)
        made.append(value.to(target.tensor))
    return made


def watch_launches(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The tables of updates by kernels, a launch each; it grows."""
    from helene.kernels import launch

    update, made = launch.update, list[Any]()
    monkeypatch.setattr(launch, "update", lambda tiles, *a, **k: (made.append(tiles), update(tiles, *a, **k)))
    return made


def along(optimizer: Any, gradients: list[torch.Tensor]) -> None:
    """A step's update along a gradient, by kernels where it is kept and they are there."""
    optimizer.apply(optimizer.plan(), [], (gradients, None))
