"""A masked-language head for an encoder that comes without one, trained on unlabelled training text.

The head is BERT's: a dense layer that starts as the identity, GELU, LayerNorm, and a decoder tied to the embedding.
Encoder and head are trained together. What comes out is another model than the encoder's authors made, and is to be
named so: "... with an MLM head trained here". The same texts, kind of card and version of torch give the same bits.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch.nn import functional as F

from llm_bench.data.folder import read_split, split_path
from llm_bench.evaluation.preflight import write_known
from llm_bench.models import loading, saving
from llm_bench.tasks import get_task, task_names
from llm_bench.tasks.task import Sentence

MASKED_SHARE = 0.15
HELD_OUT = 256
ROW = 64  # tokens that a text is cut to


def texts_of(folder: Path) -> list[str]:
    """Sentences of the training files of the masked tasks that the folder has, each once; never dev or test rows."""
    found: dict[str, None] = {}
    for name in task_names("masked"):
        task = get_task(name, "masked")
        if split_path(folder, name, "train") is None:
            continue
        for row in read_split(folder, task, "train"):
            for piece in task.make(row).pieces:
                if isinstance(piece, Sentence):
                    found.setdefault(str(piece).strip())
    if len(found) <= 2 * HELD_OUT:
        raise ValueError(f"{folder} has {len(found)} training sentences of masked tasks; too few to train a head on")
    return sorted(found, key=lambda text: hashlib.blake2b(text.encode()).digest())


@contextmanager
def _same_bits() -> Iterator[None]:
    """Dropout from one seed, and sums on a GPU in one order."""
    before, size = torch.are_deterministic_algorithms_enabled(), ":4096:8"  # read when cuBLAS starts
    with patch.dict(os.environ, CUBLAS_WORKSPACE_CONFIG=size), torch.random.fork_rng():
        torch.manual_seed(0)
        torch.use_deterministic_algorithms(True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before)


@_same_bits()
def train_head(
    encoder: Path,
    texts: Sequence[str],
    out: Path,
    *,
    steps: int,
    batch: int = 64,
    lr: float = 3e-4,
    device: str = "cpu",
    say: Callable[[str], None] = print,
) -> float:
    """Train and save the model with its head; returns the held-out loss (nats a masked token).

    Args:
        encoder: Folder of a BERT encoder with its tokenizer.
        texts: In a fixed order; the first `HELD_OUT` are held out.
        out: Folder to write.
        steps: Of AdamW, warm-up over a twentieth, then linear to 0.
        batch: Texts a step.
        lr: Largest learning rate.
        device: For instance ``cuda``.
        say: Told the held-out loss now and then.
    """
    import transformers as tf

    tokenizer = loading.load_tokenizer(encoder)
    with loading.quiet():
        base = tf.BertModel.from_pretrained(encoder, dtype=torch.float32, attn_implementation="eager")
        module = tf.BertForMaskedLM(base.config)
    module.bert.load_state_dict({k: v for k, v in base.state_dict().items() if "pooler" not in k})
    with torch.no_grad():
        dense = module.cls.predictions.transform.dense
        dense.weight.copy_(torch.eye(*dense.weight.shape))
        dense.bias.zero_()
    module.tie_weights()
    module.to(device).train()
    ids, mask = _rows(tokenizer, texts)
    rng = np.random.default_rng(0)
    optimizer = torch.optim.AdamW(module.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.01)
    special = torch.tensor([tokenizer.cls_token_id, tokenizer.sep_token_id])
    held = _held_out(module, tokenizer, ids[:HELD_OUT], mask[:HELD_OUT], special, device)
    say(f"step 0: held-out loss {held:.2f}")
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1.0, 20 * (step + 1) / steps, 1 - step / steps)
        chosen = HELD_OUT + rng.integers(0, len(texts) - HELD_OUT, batch)
        loss = _loss(module, tokenizer, ids[chosen], mask[chosen], special, rng, device)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % max(1, steps // 5) == 0:
            held = _held_out(module, tokenizer, ids[:HELD_OUT], mask[:HELD_OUT], special, device)
            say(f"step {step + 1}: held-out loss {held:.2f}")
    held = _held_out(module, tokenizer, ids[:HELD_OUT], mask[:HELD_OUT], special, device)
    module.to("cpu").eval()

    def note(partial: Path) -> None:
        write_known(loading.wrap(module, tokenizer, "masked", out.name), partial)

    saving.save(module, tokenizer, out, note)
    return held


def _rows(tokenizer: Any, texts: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
    cut = ROW - 1
    rows = [ids[:cut] + ids[-1:] if len(ids) > ROW else ids for ids in tokenizer(list(texts))["input_ids"]]
    ids = torch.full((len(rows), ROW), tokenizer.pad_token_id)
    mask = torch.zeros_like(ids)
    for i, found in enumerate(rows):
        ids[i, : len(found)] = torch.tensor(found)
        mask[i, : len(found)] = 1
    return ids, mask


def _loss(
    module: Any,
    tokenizer: Any,
    ids: torch.Tensor,
    mask: torch.Tensor,
    special: torch.Tensor,
    rng: np.random.Generator,
    device: str,
) -> torch.Tensor:
    time_used = int(mask.sum(dim=1).max())
    ids, mask = ids[:, :time_used], mask[:, :time_used]
    hidden = torch.from_numpy(rng.random(tuple(ids.shape)) < MASKED_SHARE) & (mask == 1) & ~torch.isin(ids, special)
    hidden[0, 1] = True  # never a batch without a target
    shown = ids.masked_fill(hidden, tokenizer.mask_token_id)
    states = module.bert(input_ids=shown.to(device), attention_mask=mask.to(device)).last_hidden_state
    logits = module.cls(states[hidden.to(device)])
    return F.cross_entropy(logits, ids[hidden].to(device))


@torch.no_grad()
def _held_out(
    module: Any, tokenizer: Any, ids: torch.Tensor, mask: torch.Tensor, special: torch.Tensor, device: str
) -> float:
    module.eval()
    loss = _loss(module, tokenizer, ids, mask, special, np.random.default_rng(1234), device).item()
    module.train()
    return loss
