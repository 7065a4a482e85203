"""The contract's methods, an entry of `helene.methods` each, and its targets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import helene
from helene.lab.transformer import TinyTransformer, TransformerConfig
from helene.methods import ENTRIES, Entry
from helene.steps.base import Base
from helene.steps.plan import names
from helene.steps.zeroth import ZerothOrder


class Method:
    """A class and the arguments that make it work on targets of unit scale."""

    def __init__(self, entry: Entry) -> None:
        self.entry, self.name, self.contract = entry, entry.cls, entry.contract
        self.cls: type[Base] = getattr(helene, entry.cls)
        self.zeroth_order = issubclass(self.cls, ZerothOrder)

    def build(self, params: Any, lr: float, **more: Any) -> Any:
        options = {**self.entry.fixed, **self.contract.arguments, **more}
        known = (*names(self.cls.PROBING), *(["model"] if self.zeroth_order else []))
        options = {k: v for k, v in options.items() if k in known or k not in ("eps", "model", "num_directions")}
        return self.cls(params, lr, **options)


METHODS = [Method(entry) for entry in ENTRIES]


@dataclass
class Target:
    """A model, its loss, and step sizes that suit it."""

    model: nn.Module
    loss: Callable[[], torch.Tensor]
    slope: float
    unit: float
    eps: float
    calls: int = 0
    backwards: int = 0

    def closure(self) -> torch.Tensor:
        """The loss, counted, backwards through it too."""
        self.calls += 1
        loss = self.loss()
        if loss.requires_grad:
            loss.register_hook(lambda _: setattr(self, "backwards", self.backwards + 1))
        return loss

    def lr(self, method: Method) -> float:
        return self.unit if method.entry.unit_step else self.slope

    def bits(self) -> list[torch.Tensor]:
        return [p.detach().clone() for p in self.model.parameters()]


class Vectors(nn.Module):
    """Two trained vectors and a frozen one; the forward is the loss."""

    def __init__(self, a, b, dtype, loss):
        super().__init__()
        self.a, self.b = (nn.Parameter(torch.tensor(v, dtype=dtype)) for v in (a, b))
        self.frozen = nn.Parameter(torch.ones(2, dtype=dtype), requires_grad=False)
        self.loss = loss

    def forward(self):
        return self.loss(self.a.double(), self.b.double()) * self.frozen.prod()


def one(dtype=torch.float32):
    """A parameter of three ones."""
    return nn.Parameter(torch.ones(3, dtype=dtype))


def _bowl(a, b):
    k = torch.tensor([0.5, 1.0, 1.5, 2.0], dtype=torch.float64)
    return ((a - 1) ** 2 @ k + ((b - 1) ** 2).sum()) / 2


def _valley(a, b):
    return ((1 - a) ** 2 + 100 * (b - a**2) ** 2).sum()


def quadratic(dtype):
    model = Vectors([0.0] * 4, [0.0] * 2, dtype, _bowl)  # zero-initialised
    return Target(model, model, slope=0.05, unit=0.03, eps=1e-2)


def rosenbrock(dtype):
    model = Vectors([-1.2], [1.0], dtype, _valley)
    return Target(model, model, slope=2e-4, unit=5e-3, eps=1e-2)


def logistic(dtype):
    generator = torch.Generator().manual_seed(1)
    x, model = torch.randn(12, 4, generator=generator), nn.Sequential(nn.Linear(4, 1), nn.Dropout(0.0))
    with torch.no_grad():
        model[0].weight.copy_(torch.linspace(-1, 1, 4)[None])
        model[0].bias.zero_()
    model.to(dtype)
    model[0].bias.requires_grad_(False)
    y, x = (x @ torch.tensor([2.0, -1.0, 1.0, 0.5]) > 0).double(), x.to(dtype)
    return Target(
        model, lambda: F.binary_cross_entropy_with_logits(model(x)[:, 0].double(), y), slope=0.3, unit=0.05, eps=1e-2
    )


def transformer(dtype):
    model = TinyTransformer(
        TransformerConfig(vocab=6, d_model=4, n_layer=1, n_head=2, max_len=6, mlp_ratio=2, tied=False)
    )
    model.position.weight.requires_grad_(False)
    with torch.no_grad():  # the initial 0.02 makes the norms' backward overflow float16
        model.embed.weight.mul_(25)
    model.to(dtype)
    tokens = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])
    return Target(model, lambda: _next_token_loss(model, tokens), slope=0.03, unit=0.01, eps=1e-2)


def _next_token_loss(model, tokens):
    return F.cross_entropy(model(tokens[:, :-1]).double().flatten(0, -2), tokens[:, 1:].flatten())


class _LoRALinear(nn.Module):
    """Frozen weight plus b a, b zero at first."""

    def __init__(self, size):
        super().__init__()
        generator = torch.Generator().manual_seed(2)
        self.weight = nn.Parameter(torch.randn(size, size, generator=generator) / size**0.5, requires_grad=False)
        self.lora_a = nn.Parameter(torch.randn(2, size, generator=generator) / size**0.5)
        self.lora_b = nn.Parameter(torch.zeros(size, 2))

    def forward(self, x):
        return F.linear(x, self.weight) + F.linear(F.linear(x, self.lora_a), self.lora_b)


def lora(dtype):
    model = nn.Sequential(_LoRALinear(4), nn.Tanh(), _LoRALinear(4)).to(dtype)
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(3)).to(dtype)
    return Target(model, lambda: (model(x).double() - 1).square().mean(), slope=0.05, unit=0.03, eps=1e-2)


class _Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(5, 4), nn.Linear(4, 5)
        generator = torch.Generator().manual_seed(4)
        with torch.no_grad():
            self.embed.weight.normal_(0, 0.5, generator=generator)
            self.head.bias.zero_()
        self.head.weight = self.embed.weight
        self.head.bias.requires_grad_(False)

    def forward(self, tokens):
        return self.head(self.embed(tokens).tanh())


def tied(dtype):
    model, tokens = _Tied().to(dtype), torch.arange(5)
    return Target(
        model, lambda: F.cross_entropy(model(tokens).double(), tokens.roll(1)), slope=0.1, unit=0.03, eps=1e-2
    )


TARGETS = [quadratic, rosenbrock, logistic, transformer, lora, tied]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
