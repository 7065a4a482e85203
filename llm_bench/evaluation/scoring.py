"""Log-likelihoods of options, and the losses made of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from helene.evaluation.grouped import rows
from llm_bench.data.batches import Batch
from llm_bench.models.packing import Packing, packing
from llm_bench.models.positions import accepts, position_ids


def site_logits(module: Any, batch: Batch) -> Tensor:
    """Logits at the batch's sites alone, shape (sites, vocabulary), at least float32.

    The head runs on those places only: with a large vocabulary it costs as much as the rest of a small model.
    """
    logits, _ = _at_sites(module, batch)
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def site_states(module: Any, batch: Batch) -> Tensor:
    """The hidden states that the head sees at the batch's sites, shape (sites, width)."""
    return _at_sites(module, batch)[1]


def _at_sites(module: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    mask = batch["attention_mask"]
    more = {"use_cache": False} if accepts(module, "use_cache") else {}
    positions = position_ids(module, mask)
    with ExitStack() as stack:
        stack.enter_context(rows.whole())
        kept = stack.enter_context(_only_at(module, batch["site_rows"], batch["site_positions"]))
        if "places" in batch:
            stack.enter_context(packing(Packing(batch["places"], batch["slots"], mask)))
            positions = {name: each.flatten()[batch["places"]][None] for name, each in positions.items()}
            mask = torch.ones_like(batch["input_ids"])
        output = module(input_ids=batch["input_ids"], attention_mask=mask, **positions, **more)
    if output.logits.shape[:2] != (1, batch["site_rows"].numel()):
        raise ValueError(
            f"{type(module).__name__} does not pass its hidden states through the module its head is expected at; "
            f"got logits of shape {tuple(output.logits.shape)}"
        )
    return output.logits[0], kept[0]


def token_log_likelihoods(module: Any, batch: Batch) -> Tensor:
    """Log-probability under the full softmax of each option's tokens, shape (options, tokens), 0 where filled up."""
    logits = site_logits(module, batch)
    normaliser = logits.logsumexp(dim=-1)
    sites = batch["option_sites"]
    likelihoods = logits[sites, batch["option_tokens"]] - normaliser[sites]
    return likelihoods * batch["option_mask"]


def option_scores(module: Any, batch: Batch) -> Tensor:
    """Mean log-likelihood of each option's tokens, shape (options,)."""
    return token_log_likelihoods(module, batch).sum(dim=-1) / batch["option_mask"].sum(dim=-1)


def classification_loss(module: Any, batch: Batch) -> Tensor:
    """Cross-entropy with the options' mean log-likelihoods as logits; ``labels`` are in the batch."""
    labels = batch["labels"]
    return nn.functional.cross_entropy(option_scores(module, batch).view(labels.numel(), -1), labels)


def language_model_loss(module: Any, batch: Batch) -> Tensor:
    """Mean negative log-likelihood over all tokens of the batch's options, which are the right ones alone."""
    return -token_log_likelihoods(module, batch).sum() / batch["option_mask"].sum()


def classification_losses(module: Any, batch: Batch) -> Tensor:
    """`classification_loss` of each example, shape (examples,)."""
    labels = batch["labels"]
    return nn.functional.cross_entropy(option_scores(module, batch).view(labels.numel(), -1), labels, reduction="none")


def language_model_losses(module: Any, batch: Batch) -> Tensor:
    """What each example has in `language_model_loss`, shape (examples,): their mean is that loss."""
    sums = token_log_likelihoods(module, batch).sum(dim=-1)
    return -sums * (sums.numel() / batch["option_mask"].sum())


LOSSES = {"classification": classification_loss, "language_model": language_model_loss}
EXAMPLE_LOSSES = {"classification": classification_losses, "language_model": language_model_losses}


def _is_causal(module: Any) -> bool:
    return type(module).__name__.endswith(("ForCausalLM", "LMHeadModel"))


@contextmanager
def _only_at(module: Any, site_rows: Tensor, places: Tensor) -> Iterator[list[Tensor]]:
    """Inside, the head sees hidden states of shape (1, sites, width) instead of (rows, time, width); collects them."""
    kept: list[Tensor] = []
    mine = threading.get_ident()  # the captured step runs two forwards of one model, each in a thread of its own

    def chosen(states: Tensor) -> Tensor:
        kept.append(states[site_rows, places])
        rows.gather(site_rows, len(states))
        return kept[-1][None]

    def before_head(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        return (chosen(inputs[0]), *inputs[1:]) if threading.get_ident() == mine else None

    def after_base(_: nn.Module, __: Any, output: Any) -> Any:
        if threading.get_ident() != mine:
            return None
        if isinstance(output, tuple):
            return (chosen(output[0]), *output[1:])
        output.last_hidden_state = chosen(output.last_hidden_state)
        return output

    if _is_causal(module):
        handle = module.get_output_embeddings().register_forward_pre_hook(before_head)
    else:
        handle = module.base_model.register_forward_hook(after_base)
    try:
        yield kept
    finally:
        handle.remove()
