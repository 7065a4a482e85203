"""A small model, its batches and loss, and an engine's optimizer with a twin that makes the same steps without."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F


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


def seeded(step, engine, second, twin):
    """Both losses of a step, torch's generator being where it was before the first."""
    batch, made = batch_of(step), []
    for make in (lambda: engine.step(batch), lambda: second.step(lambda: loss(twin, batch))):
        torch.manual_seed(step)
        made.append(make())
    return made
