"""Tiny random models of every causal and masked architecture that transformers makes from a shrunk configuration."""

from __future__ import annotations

import random
from typing import Any

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

from llm_bench.models import positions
from llm_bench.models.attention import NAME
from llm_bench.models.loading import LanguageModel, quiet
from llm_bench.tasks.task import Kind

VOCABULARY, MOST_PARAMETERS = 300, 20_000_000
NAMES = {
    "causal": tuple(sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)),
    "masked": tuple(sorted(MODEL_FOR_MASKED_LM_MAPPING_NAMES)),
}
_SIZES = {
    32: "hidden_size d_model n_embd dim embedding_size word_embed_proj_dim moe_intermediate_size "
    "shared_expert_intermediate_size",
    64: "intermediate_size ffn_dim d_ff hidden_dim n_inner dff decoder_ffn_dim encoder_ffn_dim ffn_hidden_size",
    2: "num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers num_key_value_heads "
    "num_experts_per_tok",
    4: "num_attention_heads n_head n_heads decoder_attention_heads encoder_attention_heads num_experts "
    "num_local_experts n_routed_experts",
    8: "head_dim qk_rope_head_dim qk_nope_head_dim v_head_dim rotary_dim",
    16: "sliding_window q_lora_rank kv_lora_rank",
    128: "max_position_embeddings n_positions n_ctx",
    VOCABULARY: "vocab_size",
    1: "pad_token_id num_hidden_groups",
}
SMALL = {name: size for size, names in _SIZES.items() for name in names.split()}
SPECIAL = {"bos_token_id": 2, "eos_token_id": 3}


class Tokens:
    """What is asked of a tokenizer where rows are made of numbers."""

    pad_token_id, eos_token_id, mask_token_id = 1, 3, 5


class NotMade(Exception):
    """The shrunk configuration is none of the architecture's, or far too large."""


def make(name: str, kind: Kind) -> LanguageModel:
    """A random model in float32 with our attention, where it takes one."""
    try:
        module = _module(name, MODEL_FOR_CAUSAL_LM_MAPPING if kind == "causal" else MODEL_FOR_MASKED_LM_MAPPING)
    except Exception as err:
        raise NotMade(f"{name}: {type(err).__name__}: {err}") from err
    with quiet():
        module.set_attn_implementation(NAME)
    longest, side = positions.longest(module.config), "left" if kind == "causal" else "right"
    return LanguageModel(module.eval(), Tokens(), kind, name, "none", (2,), (3,), longest, side)


def _module(name: str, classes: Any) -> Any:
    config_class = CONFIG_MAPPING[name]
    cls = classes[config_class]
    cls = cls[0] if isinstance(cls, tuple) else cls
    usual = config_class()
    changes = {key: value for key, value in {**SMALL, **SPECIAL}.items() if hasattr(usual, key)}
    if "qk_rope_head_dim" in changes:  # latent attention has a key of its own for each head
        changes["num_key_value_heads"] = SMALL["num_attention_heads"]
    config = config_class(**changes)
    with torch.device("meta"):
        size = sum(p.numel() for p in cls._from_config(config).parameters())
    if size > MOST_PARAMETERS:
        raise NotMade(f"{size} parameters")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = cls._from_config(config, attn_implementation="eager").float()
        for parameter in module.parameters():  # library defaults are so small that attention would hardly show
            if parameter.dim() > 1:
                parameter.data.normal_(0, 0.2)
        for key, parameter in module.named_parameters():
            if key.endswith(("sinks", "sink", "attention_sink_bias")):
                parameter.data.fill_(1.0)
    return module


def row(length: int) -> list[int]:
    """Random tokens, none of them special."""
    draw = random.Random(length)
    return [draw.randrange(6, VOCABULARY) for _ in range(length)]
