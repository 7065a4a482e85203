"""What is trained: all weights, LoRA or a prefix. Each makes its parameters once and can begin afresh for every run."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from llm_bench.models.loading import LanguageModel
from llm_bench.models.tuning.base import TUNINGS, Reset, Tuning, TuningName, trained

__all__ = ["TUNINGS", "Reset", "Tuning", "TuningName", "prepare", "trained"]


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
    from llm_bench.models.tuning.prefix import add_prefix  # transformers takes seconds to import

    return add_prefix(model, tuning)


_PREPARE: dict[TuningName, Callable[[LanguageModel, Tuning], Reset]]
_PREPARE = {"full": _full, "lora": _lora, "prefix": _prefix}
