"""A small network and minibatch, for HELENE and MeZO to be tried on."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

BATCH = 6


def problem(dtype=torch.float64, seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4)).to(dtype)
    x, y = torch.randn(BATCH, 3, dtype=dtype), torch.randint(0, 4, (BATCH,))
    return model, (lambda: F.cross_entropy(model(x), y)), (lambda: model(x)), (x, y)
