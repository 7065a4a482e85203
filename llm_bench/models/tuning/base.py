"""What every tuning has in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import torch
from torch import nn

TuningName = Literal["full", "lora", "prefix"]
TUNINGS: tuple[TuningName, ...] = get_args(TuningName)


@dataclass(frozen=True)
class Tuning:
    """How a model is tuned; the defaults are MeZO's.

    Attributes:
        name: ``full``, ``lora`` (on the query and value projections) or ``prefix``.
        rank: Of LoRA.
        alpha: LoRA's scale is alpha / rank.
        length: Of the prefix, in tokens.
    """

    name: TuningName = "full"
    rank: int = 8
    alpha: float = 16.0
    length: int = 5

    def __post_init__(self) -> None:
        if self.name not in TUNINGS:
            raise ValueError(f"tuning must be one of {', '.join(TUNINGS)}, got {self.name!r}")
        for name in ("rank", "alpha", "length"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)!r}")


class Reset(Protocol):
    """Puts the trained parameters where a run begins; the same seed gives the same bits."""

    def __call__(self, seed: int) -> None:
        """Start afresh."""


def trained(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Names and parameters that are trained."""
    return [(name, p) for name, p in module.named_parameters() if p.requires_grad]


def adapter_dtype(module: nn.Module) -> torch.dtype:
    """Dtype of added parameters."""
    return torch.promote_types(next(module.parameters()).dtype, torch.float32)


def generator(seed: int, purpose: int) -> torch.Generator:
    """A CPU generator of one purpose, apart from torch's global one."""
    return torch.Generator().manual_seed((seed * 1000 + purpose) % (1 << 64))
