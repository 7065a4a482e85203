"""Attention for every model here: fused, with a mask that is always made, and room for a learned prefix.

transformers lets a function be registered as an attention implementation; models call it with queries, keys and values
after positions were applied and caches updated. That one seam carries prefix tuning, whatever caches and masks look
like in a version. The mask is made without asking the data whether it is needed: no synchronization, so that a step can
be captured as a CUDA graph.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from llm_bench.models.packing import current

NAME = "helene"

_TAKEN = {"softcap", "position_bias", "sliding_window"}  # the window is in the mask already
_ELSEWHERE = {  # what models hand down to every layer, and other attentions read
    "position_ids",
    "cache_position",
    "use_cache",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "num_items_in_batch",
    "deterministic",
}


class Prefix(nn.Module):
    """Learned keys and values that every query of one attention module sees; shapes (heads, length, head size)."""

    def __init__(self, key: Tensor, value: Tensor) -> None:
        super().__init__()
        self.key = nn.Parameter(key)
        self.value = nn.Parameter(value)

    def forward(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The prefix in front of keys and values of shape (batch, heads, time, head size)."""
        batch = key.shape[0]
        return (
            torch.cat([self.key.to(key.dtype).expand(batch, -1, -1, -1), key], dim=2),
            torch.cat([self.value.to(value.dtype).expand(batch, -1, -1, -1), value], dim=2),
        )


class _Capture:
    """Where `captured` collects; None outside it."""

    seen: list[tuple[nn.Module, Tensor, Tensor]] | None = None
    bare: bool = False


@contextmanager
def captured() -> Iterator[list[tuple[nn.Module, Tensor, Tensor]]]:
    """Collects (module, keys, values) of each attention call inside, in their order; prefixes are left out."""
    _Capture.seen = []
    try:
        yield _Capture.seen
    finally:
        _Capture.seen = None


@contextmanager
def without_prefixes() -> Iterator[None]:
    """Inside, models are as they were before a prefix was added."""
    _Capture.bare = True
    try:
        yield
    finally:
        _Capture.bare = False


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """What models call; returns the output of shape (batch, time, heads, head size) and no weights.

    Raises:
        ValueError: If a model gives it an argument that it does not take: leaving one out would change the scores.
    """
    packing = current()
    if packing is not None and kwargs.get("position_bias") is not None:
        raise ValueError(f"{type(module).__name__} has a bias for each pair of places, which packed tokens have not")
    if packing is not None:
        query, key, value = (packing.in_rows(x) for x in (query, key, value))
    bare = _Capture.bare or _Capture.seen is not None
    if _Capture.seen is not None:
        _Capture.seen.append((module, key, value))
    causal = kwargs.pop("is_causal", None)
    causal = getattr(module, "is_causal", True) if causal is None else causal
    prefix = None if bare else getattr(module, "prefix", None)
    alone = isinstance(prefix, Prefix) or kwargs.get("softcap") is not None
    _refuse_unknown(module, kwargs, _TAKEN - {"position_bias"} if alone else _TAKEN)
    if attention_mask is None and causal and query.shape[2] > 1:
        attention_mask = _causal_mask(query.shape[2], key.shape[2], query.device)
    if isinstance(prefix, Prefix):
        key, value = prefix(key, value)
        if attention_mask is not None:
            attention_mask = nn.functional.pad(
                attention_mask, (prefix.key.shape[1], 0), value=True if attention_mask.dtype == torch.bool else 0.0
            )
    if kwargs.get("softcap") is not None:
        output = _written_out(query, key, value, attention_mask, scaling, dropout, kwargs["softcap"])
    else:
        output, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, is_causal=False, **kwargs
        )
    return output if packing is None else packing.in_one(output), None


def _refuse_unknown(module: nn.Module, arguments: Mapping[str, Any], taken: set[str]) -> None:
    for name, value in arguments.items():
        if value is not None and name not in taken | _ELSEWHERE:
            raise ValueError(
                f"{type(module).__name__} gives its attention {name}, which llm_bench does not compute, so that scores "
                "would be wrong; take a model of another architecture"
            )


def _causal_mask(queries: int, keys: int, device: torch.device) -> Tensor:
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)[None, None]


def _written_out(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float | None,
    dropout: float,
    cap: float,
) -> Tensor:
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
    scores = query @ key.transpose(-1, -2) * (1 / math.sqrt(query.shape[-1]) if scaling is None else scaling)
    scores = torch.tanh(scores / cap) * cap
    if mask is not None:
        low = torch.finfo(scores.dtype).min
        scores = scores.masked_fill(~mask, low) if mask.dtype == torch.bool else scores + mask
    wide = torch.promote_types(scores.dtype, torch.float32)
    weights = scores.softmax(dim=-1, dtype=wide).to(query.dtype)
    return (nn.functional.dropout(weights, dropout) @ value).transpose(1, 2).contiguous()


def _mask(*args: Any, **kwargs: Any) -> Tensor | None:
    packing = current()
    if packing is not None:
        rows, time = packing.mask.shape
        kwargs |= {"batch_size": rows, "q_length": time, "kv_length": time, "attention_mask": packing.mask.bool()}
    mask = sdpa_mask(*args, **{**kwargs, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False})
    return _without_blind(mask) if torch.is_grad_enabled() else mask


def _without_blind(mask: Tensor) -> Tensor:
    """The mask with queries that see no key, as in left padding, seeing all of them; what real tokens see stays.

    The log-sum-exp of a blind query is −inf, of which cuDNN's backward in 16 bits makes gradients that are not finite
    (pytorch/pytorch#196678, with 64 keys modulo 128). Forwards alone need no such care.
    """
    return mask | ~mask.any(-1, keepdim=True)


# Compiled layers call it as it is: what it asks of this module and of the thread is no part of a graph.
AttentionInterface.register(NAME, torch.compiler.disable(attend))
AttentionMaskInterface.register(NAME, _mask)
