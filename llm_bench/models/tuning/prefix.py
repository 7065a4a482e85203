"""Prefix tuning: keys and values in front of every attention's own, begun from real activations.

MeZO's way: the prefix starts as what the model computes for a few random tokens, and there is no reparametrisation.
It joins after positions were applied; the positions of the text stay as they are.
"""

from __future__ import annotations

from typing import Any

import torch

from llm_bench.models import attention
from llm_bench.models.loading import LanguageModel
from llm_bench.models.positions import accepts, position_ids
from llm_bench.models.tuning.base import Tuning, adapter_dtype, generator


def add_prefix(model: LanguageModel, tuning: Tuning) -> Any:
    """Attach the prefixes; see `llm_bench.models.tuning.prepare`."""
    module, dtype = model.module, adapter_dtype(model.module)
    module.requires_grad_(False)
    activations = _activations(model, tuning.length, 0)
    if not activations:
        raise ValueError(
            f"{type(module).__name__} does not call the attention function that was set for it, so a prefix cannot be "
            "attached; tune it in full or with LoRA"
        )
    for layer, key, value in activations:
        layer.prefix = attention.Prefix(key.to(dtype).contiguous(), value.to(dtype).contiguous())

    @torch.no_grad()
    def reset(seed: int) -> None:
        for layer, key, value in _activations(model, tuning.length, seed):
            layer.prefix.key.copy_(key)
            layer.prefix.value.copy_(value)

    return reset


@torch.no_grad()
def _activations(model: LanguageModel, length: int, seed: int) -> list[tuple[Any, torch.Tensor, torch.Tensor]]:
    """(attention module, keys, values) of a few random tokens, without the prefixes there may be already."""
    config = model.module.config.get_text_config()
    tokens = torch.randint(config.vocab_size, (1, length), generator=generator(seed, purpose=2)).to(model.device)
    mask = torch.ones_like(tokens)
    more = {"use_cache": False} if accepts(model.module, "use_cache") else {}
    with attention.captured() as seen:
        model.module(input_ids=tokens, attention_mask=mask, **position_ids(model.module, mask), **more)
    return [(layer, key[0].clone(), value[0].clone()) for layer, key, value in seen]
