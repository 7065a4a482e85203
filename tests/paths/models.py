"""Two small models, computed in float64 whatever their parameters are: what differs between paths is then the paths'.

"tied" has an embedding that is also the head, and a parameter that the model reads outside of a module's forward;
"odd" has two parameters, of sizes that are no multiple of anything.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

VOCABULARY, ROWS, LENGTH = 40, 4, 5


class Dense(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.double(), None if self.bias is None else self.bias.double())


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.first = nn.Embedding(VOCABULARY, 8), Dense(8, 5)
        self.second, self.scale = Dense(5, 8, bias=False), nn.Parameter(torch.ones(8))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids).double()
        x = x + self.second(torch.tanh(self.first(x)))
        return F.linear(x * self.scale.double(), self.embed.weight.double())


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix, self.gain = Dense(VOCABULARY, 7, bias=False), nn.Parameter(torch.ones(7))

    def forward(self, ids: Tensor) -> Tensor:
        return torch.tanh(self.mix(F.one_hot(ids, VOCABULARY).double())) * self.gain.double()


LAYERS = {
    "tied": (("embed",), ("first", "second"), ("scale",)),
    "odd": (("mix",), ("gain",)),
}


def make(name: str, dtype: torch.dtype, device: str = "cpu") -> nn.Module:
    """A model, the same at every call."""
    generator = torch.Generator().manual_seed(7)
    model = {"tied": Tied, "odd": Odd}[name]()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * (0.5 if p.dim() > 1 else 0.2) + (p.dim() == 1) * 0.5)
    return model.to(device, dtype)


def batch_of(step: int, own: int = 0, device: str = "cpu") -> dict[str, Tensor]:
    """The minibatch of a step; ``own`` is 1 for the curvature's.

    No id is there three times: a row's gradients are summed in 16 bits or in 32, by device, and two give the same.
    """
    generator, most = torch.Generator().manual_seed(2 * step + own), 3
    while most > 2:
        ids, labels = torch.randint(0, VOCABULARY, (2, ROWS, LENGTH), generator=generator)
        most = int(ids.flatten().bincount().max())
    one = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)  # two factors of the loss, and what is taken off before
    return {"ids": ids.to(device), "labels": labels.to(device), "spoil": one.to(device)}


def share(batch: dict[str, Tensor], rank: int) -> dict[str, Tensor]:
    """A rank's half of a minibatch."""
    half = slice(ROWS // 2 * rank, ROWS // 2 * (rank + 1))
    return {name: value if name == "spoil" else value[half] for name, value in batch.items()}


def loss(model: Any, batch: dict[str, Tensor]) -> Tensor:
    out = model(batch["ids"])
    value = F.cross_entropy(out.flatten(0, 1), batch["labels"].flatten() % out.shape[-1])
    return (value - batch["spoil"][2]) * batch["spoil"][0] * batch["spoil"][1]


@cache
def flip(name: str, dtype: str, eps: float) -> float:
    """By what share an element of a 16-bit copy that is rounded the other way moves the loss, at most.

    One element moves by a unit in its last place, the loss by that times the element's derivative.
    """
    kind, generator, found = getattr(torch, dtype), torch.Generator().manual_seed(5), 0.0
    for step in range(1, 37):
        model = make(name, kind).double()
        with torch.no_grad():
            for p in model.parameters():
                p.add_(eps * torch.randn(p.shape, generator=generator, dtype=torch.float64))
        value = loss(model, batch_of(step))
        value.backward()
        for p in model.parameters():
            unit = torch.finfo(kind).eps * 2.0 ** p.detach().abs().log2().floor()
            found = max(found, float((unit * p.grad).abs().max() / value.detach()))
    return found


def spoiled(how: str, model: Any, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """A batch whose loss is nan, or whose losses near theta are finite where their slope is above the largest float64.

    With eps 1e-3 and a slope of 0.1 to 10, losses off by 1e-4 to 1e-2 become 1e306 to 1e308, the slope 1e309 and more.
    """
    spoil = torch.tensor([torch.nan, 1.0, 0.0], dtype=torch.float64)
    if how == "steep":
        with torch.no_grad():
            spoil = torch.tensor([1e300, 1e10, float(loss(model, batch))], dtype=torch.float64)
    return {**batch, "spoil": spoil.to(batch["spoil"].device)}


def curvature_closure(source: str, model: Any, batch: dict[str, Tensor]) -> Callable[[], Tensor] | None:
    """What a source of curvature is evaluated on, if it has a minibatch of its own."""
    if source == "sampled_labels":
        return lambda: model(batch["ids"]).flatten(0, 1)
    return (lambda: loss(model, batch)) if source == "spsa_own_batch" else None
