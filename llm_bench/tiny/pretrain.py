"""Two tiny models pretrained on the generated language, in about a minute of one core each, and kept in a cache."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from llm_bench.evaluation.preflight import write_known
from llm_bench.models import loading, saving
from llm_bench.models.fingerprint import cache_folder
from llm_bench.tasks.task import Kind
from llm_bench.tiny import grammar
from llm_bench.tiny.tokenizer import make_tokenizer

KNOWN = "the film is funny and the plot is clever . It was great. Anna is in the garden and Ben has the red ball."
_MASKED_SHARE = 0.03
_SPREAD = {"causal": "init_std", "masked": "initializer_range"}  # what the two families call it


@dataclass(frozen=True)
class Recipe:
    """How a tiny model is made; a change of anything makes another model in the cache.

    Attributes:
        kind: ``causal``: shaped as OPT; ``masked``: as RoBERTa.
        width: Of the hidden states.
        layers: Blocks.
        heads: Of attention.
        positions: Longest text in tokens.
        steps: Of AdamW.
        batch: Documents a step.
        row: Tokens a document is cut to.
        lr: Largest learning rate: warm-up over a tenth of the steps, then linear to 0.
        spread: Standard deviation of the initial matrices; the library's 0.02 is for wider models.
        seed: Of weights, text and masks.
        version: Of the grammar and of this code.
    """

    kind: Kind
    width: int = 64
    layers: int = 1
    heads: int = 4
    positions: int = 160
    steps: int = 1000
    batch: int = 32
    row: int = 48
    lr: float = 5e-3
    spread: float = 0.1
    seed: int = 0
    version: int = 1


def tiny_model(recipe: Recipe, cache: Path | None = None, say: Callable[[str], None] = lambda _: None) -> Path:
    """The folder of the model, made if the cache has none: weights, tokenizer, and the loss of a known text.

    Args:
        recipe: How it is made.
        cache: Folder for such models; default ``$HELENE_CACHE``, else ``~/.cache/helene``.
        say: Told what is being done.
    """
    digest = hashlib.sha256(json.dumps(asdict(recipe), sort_keys=True).encode()).hexdigest()[:12]
    folder = (cache or cache_folder()) / f"tiny-{recipe.kind}-{digest}"
    if (folder / "config.json").is_file():
        return folder
    say(f"pretraining a tiny {recipe.kind} model ({recipe.steps} steps), once")
    model = pretrain(recipe)
    saving.save(model.module, model.tokenizer, folder, lambda partial: write_known(model, partial, KNOWN))
    return folder


def pretrain(recipe: Recipe) -> loading.LanguageModel:
    """Make and pretrain the model; the same recipe gives the same weights on one machine."""
    tokenizer = make_tokenizer(recipe.kind)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        module = _module(recipe, tokenizer)
        model = loading.wrap(module, tokenizer, recipe.kind, f"tiny {recipe.kind}")
        module.train()
        optimizer = torch.optim.AdamW(module.parameters(), lr=recipe.lr, betas=(0.9, 0.98), weight_decay=0.01)
        documents = grammar.documents(recipe.seed + 1)
        rng = np.random.default_rng(recipe.seed)
        for step in range(recipe.steps):
            for group in optimizer.param_groups:
                group["lr"] = recipe.lr * min(1.0, 10 * (step + 1) / recipe.steps, 1 - step / recipe.steps)
            texts = list(itertools.islice(documents, recipe.batch))
            loss = _loss(model, *_rows(model, texts, recipe.row), rng)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
    module.eval()
    return model


def _module(recipe: Recipe, tokenizer: Any) -> Any:
    import transformers as tf

    shape = {
        "vocab_size": len(tokenizer),
        "hidden_size": recipe.width,
        "num_hidden_layers": recipe.layers,
        "num_attention_heads": recipe.heads,
        _SPREAD[recipe.kind]: recipe.spread,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    if recipe.kind == "causal":
        size = {"ffn_dim": 4 * recipe.width, "word_embed_proj_dim": recipe.width, "dropout": 0.0}
        return tf.OPTForCausalLM(tf.OPTConfig(**shape, **size, max_position_embeddings=recipe.positions))
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    size = {"intermediate_size": 4 * recipe.width, "type_vocab_size": 1}
    return tf.RobertaForMaskedLM(tf.RobertaConfig(**shape, **size, **off, max_position_embeddings=recipe.positions + 2))


def _rows(model: loading.LanguageModel, texts: Sequence[str], length: int) -> tuple[Tensor, Tensor]:
    """Token ids and mask, shape (texts, time), filled up on the right."""
    rows = [model.tokenizer(text)["input_ids"][:length] for text in texts]
    time = max(map(len, rows))
    ids = torch.full((len(rows), time), model.pad_id)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
        mask[i, : len(row)] = 1
    return ids, mask


def _loss(model: loading.LanguageModel, ids: Tensor, mask: Tensor, rng: np.random.Generator) -> Tensor:
    if model.kind == "causal":
        logits = model.module(input_ids=ids, attention_mask=mask, use_cache=False).logits
        targets = ids.masked_fill(mask == 0, -100)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), targets[:, 1:].flatten(), ignore_index=-100)
    hidden = torch.from_numpy(rng.random(tuple(ids.shape)) < _MASKED_SHARE) & (mask == 1)
    hidden &= ~torch.isin(ids, torch.tensor([*model.before, *model.after]))
    # The place of a verdict, in most rows: drawn as all other places are, it would be learned far too slowly.
    ends = mask.sum(dim=1) - len(model.after) - 2
    hidden[torch.arange(len(ids)), ends] |= torch.from_numpy(rng.random(len(ids)) < 0.9)
    logits = model.module(input_ids=ids.masked_fill(hidden, model.tokenizer.mask_token_id), attention_mask=mask).logits
    return F.cross_entropy(logits[hidden], ids[hidden])
