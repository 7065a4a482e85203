"""Greedy answers, cut at the first newline."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from llm_bench.models.loading import LanguageModel
from llm_bench.models.positions import accepts

FEW_TOKENS = 8192
KEYS_AND_VALUES = 2 << 30  # bytes of a batch on a GPU, where a step takes about as long for many rows as for few


def generate(
    model: LanguageModel, prompts: Sequence[Sequence[int]], max_new_tokens: int, max_tokens: int | None = None
) -> list[str]:
    """The text that the model adds to each prompt, greedily, up to a newline or its end token; stripped.

    Args:
        model: A causal one, in evaluation mode.
        prompts: Tokens with the special ones.
        max_new_tokens: Most tokens added.
        max_tokens: Most tokens (padding and additions included) of a batch; see `tokens_at_once`.
    """
    max_tokens = max_tokens or tokens_at_once(model)
    order = sorted(range(len(prompts)), key=lambda i: -len(prompts[i]))
    answers = [""] * len(prompts)
    while order:
        width = len(prompts[order[0]])
        count = max(1, max_tokens // (width + max_new_tokens))
        if model.side == "right":  # answers grow on the right: padding would have to be on the left
            count = min(count, sum(len(prompts[index]) == width for index in order))
        chosen, order = order[:count], order[count:]
        ids = torch.full((len(chosen), width), model.pad_id)
        mask = torch.zeros_like(ids)
        for row, index in enumerate(chosen):
            ids[row, width - len(prompts[index]) :] = torch.tensor(prompts[index])
            mask[row, width - len(prompts[index]) :] = 1
        for index, text in zip(chosen, _continue(model, ids, mask, max_new_tokens), strict=True):
            answers[index] = text
    return answers


def tokens_at_once(model: LanguageModel) -> int:
    """Tokens of a batch unless it is told: as many as `KEYS_AND_VALUES` hold.

    `FEW_TOKENS` on a CPU, and for models that compute the logits of every token of a prompt.
    """
    if model.device.type == "cpu" or not accepts(model.module, "logits_to_keep"):
        return FEW_TOKENS
    return KEYS_AND_VALUES // bytes_of_a_token(model)


def bytes_of_a_token(model: LanguageModel) -> int:
    """Bytes of its keys and values."""
    config, element = model.module.config.get_text_config(), next(model.module.parameters()).element_size()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(2 * config.num_hidden_layers * heads * size * element)


def _continue(model: LanguageModel, ids: Tensor, mask: Tensor, max_new_tokens: int) -> list[str]:
    from transformers import GenerationConfig

    width, tokenizer, device = ids.shape[1], model.tokenizer, model.device

    def stop(tokens: Tensor, _scores: Any, **_: Any) -> Tensor:
        texts = tokenizer.batch_decode(tokens[:, width:], skip_special_tokens=True)
        return torch.tensor(["\n" in text for text in texts], device=tokens.device)

    ends = {tokenizer.eos_token_id, *_as_list(model.module.config.get_text_config().eos_token_id)} - {None}
    plain = GenerationConfig(
        do_sample=False,
        num_beams=1,
        max_new_tokens=max_new_tokens,
        eos_token_id=sorted(ends) or None,
        pad_token_id=model.pad_id,
    )
    with _generation_config(model.module, plain), torch.inference_mode():
        tokens = model.module.generate(
            input_ids=ids.to(device), attention_mask=mask.to(device), stopping_criteria=[stop], generation_config=plain
        )
    texts = tokenizer.batch_decode(tokens[:, width:], skip_special_tokens=True)
    return [text.split("\n")[0].strip() for text in texts]


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


@contextmanager
def _generation_config(module: Any, config: Any) -> Any:
    """The model's own defaults (sampling, repetition penalties) would fill in what is not set."""
    before = module.generation_config
    module.generation_config = config
    try:
        yield
    finally:
        module.generation_config = before
