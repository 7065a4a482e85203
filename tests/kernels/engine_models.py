"""A small language model with tied weights and a parameter that is read outside its own module."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        scores = self.query(h) @ h.transpose(1, 2) / h.shape[-1] ** 0.5
        x = x + self.out(scores.softmax(-1) @ h)
        return x + self.down(torch.relu(self.up(self.norm2(x))))


class TiedModel(nn.Module):
    def __init__(self, vocabulary: int = 100, width: int = 16, depth: int = 3, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embed.weight
        self.scale = nn.Parameter(torch.ones(width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.dropout(self.embed(ids))
        for block in self.blocks:
            x = block(x)
        return self.head(x * self.scale)


def loss(model: Any, batch: dict[str, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch["ids"]).float().flatten(0, 1), batch["labels"].flatten())


def batch_of(step: int, rows: int = 4, length: int = 9, vocabulary: int = 100) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(step)
    draw = torch.randint(0, vocabulary, (2, rows, length), generator=generator)
    return {"ids": draw[0], "labels": draw[1]}
