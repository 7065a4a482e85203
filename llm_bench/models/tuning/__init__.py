"""What is trained: all weights, LoRA or a prefix. Each makes its parameters once and can begin afresh for every run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from llm_bench.models.loading import LanguageModel

TuningName = Literal["full", "lora", "prefix"]


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


def prepare(model: LanguageModel, tuning: Tuning) -> Reset:
    """Add what is to be trained, freeze the rest, and return the function that begins a run.

    Adapters are float32 (float64 in a float64 model) whatever the model's dtype: they are small, and a zeroth-order
    step would be lost in 16 bits. With full tuning the reset keeps a copy of the weights in main memory.

    Raises:
        ValueError: If the model has no projections or attention that the tuning knows.
    """
    reset = _PREPARE[tuning.name](model, tuning)
    reset(0)
    return reset


def trained(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Names and parameters that are trained."""
    return [(name, p) for name, p in module.named_parameters() if p.requires_grad]


def adapter_dtype(module: nn.Module) -> torch.dtype:
    """Dtype of added parameters."""
    return torch.promote_types(next(module.parameters()).dtype, torch.float32)


def generator(seed: int, purpose: int) -> torch.Generator:
    """A CPU generator of one purpose, apart from torch's global one."""
    return torch.Generator().manual_seed((seed * 1000 + purpose) % (1 << 64))


def _full(model: LanguageModel, tuning: Tuning) -> Reset:
    model.module.requires_grad_(True)
    kept: dict[str, Tensor] = {name: p.detach().to("cpu", copy=True) for name, p in model.module.named_parameters()}

    @torch.no_grad()
    def reset(seed: int) -> None:
        for name, parameter in model.module.named_parameters():
            parameter.copy_(kept[name])

    return reset


def _lora(model: LanguageModel, tuning: Tuning) -> Reset:
    from llm_bench.models.tuning.lora import add_lora

    return add_lora(model, tuning)


def _prefix(model: LanguageModel, tuning: Tuning) -> Reset:
    from llm_bench.models.tuning.prefix import add_prefix

    return add_prefix(model, tuning)


_PREPARE: dict[str, Callable[[LanguageModel, Tuning], Any]] = {"full": _full, "lora": _lora, "prefix": _prefix}
TUNINGS = tuple(_PREPARE)
