"""Padding that sees no key, where gradients are made of it: no real token may notice what it is shown instead."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from llm_families import CAUSAL, make
from torch import Tensor
from torch.nn import functional as F

from llm_bench.models import attention


def _batch(model: Any, side: str) -> tuple[Tensor, Tensor]:
    """Rows of 24, 9 and 1 real tokens; the window of gemma's layers is 16."""
    ids = torch.randint(4, 200, (3, 24), generator=torch.Generator().manual_seed(0))
    real = torch.zeros_like(ids)
    for row, length in enumerate((24, 9, 1)):
        real[row, slice(-length, None) if side == "left" else slice(length)] = 1
    return ids.where(real == 1, model.tokenizer.pad_token_id), real


def _gradients(module: Any, ids: Tensor, real: Tensor) -> list[Tensor]:
    """Of a loss that reads the real tokens' logits alone."""
    logits = module(input_ids=ids, attention_mask=real, use_cache=False).logits[real == 1]
    trained = [p for p in module.parameters() if p.requires_grad]
    return list(torch.autograd.grad(F.cross_entropy(logits.float(), ids[real == 1]), trained))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", CAUSAL)
def test_real_tokens_and_gradients_keep_every_bit(
    family: str, dtype: torch.dtype, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the masks as transformers makes them; the CPU's kernels have finite gradients with those too."""
    model = make(family, dtype=dtype)
    ids, real = _batch(model, side)
    seen: list[Tensor] = []

    def attend(*args: Any, attn_mask: Tensor, **kwargs: Any) -> Tensor:
        seen.append(attn_mask)
        return sdpa(*args, attn_mask=attn_mask, **kwargs)

    sdpa = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", attend)
    with torch.no_grad():
        plain = model.module(input_ids=ids, attention_mask=real, use_cache=False).logits
    as_made, seen[:] = list(seen), []
    trained = model.module(input_ids=ids, attention_mask=real, use_cache=False).logits
    assert torch.equal(plain[real == 1], trained.detach()[real == 1])
    if family != "gemma2":  # its capped scores are written out
        assert len(seen) == len(as_made) > 0
        sees = [mask.any(-1) for mask in as_made]
        assert not all(map(torch.all, sees)) or side == "right"
        for before, after, alive in zip(as_made, seen, sees, strict=True):
            assert after.any(-1).all()
            assert torch.equal(after[alive.expand(after.shape[:-1])], before[alive.expand(after.shape[:-1])])

    found = _gradients(model.module, ids, real)
    with monkeypatch.context() as patch:
        patch.setattr(attention, "_without_blind", lambda mask: mask)
        expected = _gradients(model.module, ids, real)
    assert all(torch.isfinite(g).all() for g in found)
    assert all(map(torch.equal, found, expected))
