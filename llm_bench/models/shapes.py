"""Models of published shapes with random weights, made on the device from their configuration."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from llm_bench.models.attention import NAME as ATTENTION

# hidden size, feed-forward size, layers, heads
OPT = {
    "opt-tiny": (64, 256, 2, 4),
    "opt-125m": (768, 3072, 12, 12),
    "opt-1.3b": (2048, 8192, 24, 32),
    "opt-2.7b": (2560, 10240, 32, 32),
    "opt-6.7b": (4096, 16384, 32, 32),
    "opt-13b": (5120, 20480, 40, 40),
}
VOCABULARY = 50272
GEMMA = "gemma3-270m"


def build(shape: str, dtype: torch.dtype = torch.bfloat16, device: str = "cuda", seed: int = 0) -> Any:
    """A model of a published shape, weights normal with standard deviation 0.02, in evaluation mode.

    Raises:
        ValueError: If the shape is unknown.
    """
    from transformers import AutoModelForCausalLM

    config, default = _config(shape), torch.get_default_dtype()
    torch.manual_seed(seed)
    try:
        torch.set_default_dtype(dtype)
        with torch.device(device):
            model = AutoModelForCausalLM.from_config(config, attn_implementation=ATTENTION)
    finally:
        torch.set_default_dtype(default)
    return model.eval()


def _config(shape: str) -> Any:
    from transformers import Gemma3TextConfig, OPTConfig

    if shape == GEMMA:
        return Gemma3TextConfig(
            vocab_size=262144,
            hidden_size=640,
            intermediate_size=2048,
            num_hidden_layers=18,
            num_attention_heads=4,
            num_key_value_heads=1,
            head_dim=256,
            sliding_window=512,
        )
    if shape not in OPT:
        raise ValueError(f"shape must be one of {', '.join((*OPT, GEMMA))}, got {shape!r}")
    hidden, feed_forward, layers, heads = OPT[shape]
    return OPTConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        ffn_dim=feed_forward,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        word_embed_proj_dim=hidden,
        max_position_embeddings=2048,
    )


def num_parameters(shape: str) -> int:
    """Parameters of a shape, the tied head counted once."""
    return sum(p.numel() for p in build(shape, device="meta").parameters())


def rows_and_tokens(text: str) -> tuple[int, int]:
    """The rows, and the tokens of each, of a batch such as ``16x64``.

    Raises:
        ValueError: If it is none.
    """
    rows, _, tokens = text.partition("x")
    if not (rows.isdecimal() and tokens.isdecimal() and int(rows) and int(tokens)):
        raise ValueError(f"a batch is rows and tokens a row, such as 16x64; got {text!r}")
    return int(rows), int(tokens)


def random_batch(rows: int, length: int, device: str = "cuda", seed: int = 0) -> dict[str, Tensor]:
    """Tokens, an attention mask with some padding on the left, and labels."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(4, VOCABULARY, (rows, length), generator=generator)
    mask = torch.ones_like(ids)
    mask[0, : length // 8] = 0
    batch = {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}
    return {name: value.to(device) for name, value in batch.items()}


def language_loss(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """Next-token loss over all places, as transformers computes it, without a cache."""
    return model(**batch, use_cache=False).loss


def row_losses(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """`language_loss` of each row, shape (rows,)."""
    seen = {name: value for name, value in batch.items() if name != "labels"}
    logits, labels = model(**seen, use_cache=False).logits[:, :-1].float(), batch["labels"][:, 1:]
    each = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")  # 0 where labels are -100
    return each.view_as(labels).sum(dim=1) / (labels != -100).sum(dim=1)
