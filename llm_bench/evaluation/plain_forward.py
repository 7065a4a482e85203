"""The harness's score of a text against a plain forward by transformers' own attention: one row, no padding, no mask.

What the harness does beside it may not fit a model: its attention, padding, positions, where it looks for the head.
None of these shows in an accuracy, all of them in this difference.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from helene.evaluation.agreement import forward_rounding
from llm_bench.data.batches import Batch, packed, to_device
from llm_bench.data.encode import Encoded
from llm_bench.evaluation.evaluate import score
from llm_bench.evaluation.scoring import site_logits
from llm_bench.models import attention
from llm_bench.models.loading import LanguageModel, quiet
from llm_bench.models.positions import SIDES, Side, accepts

NEGLIGIBLE = 1e-3  # nats a token


def choose_side(model: LanguageModel, examples: Sequence[Encoded]) -> dict[str, Any]:
    """Set the side of the padding on which the harness agrees with a plain forward; the model's usual one first.

    Args:
        model: In evaluation mode.
        examples: Rows of several lengths, so that some are padded; each option is compared.

    Returns:
        ``padding_side``; ``forward_difference``, in nats a token, and ``forward_limit``.

    Raises:
        ValueError: If it agrees on neither side.
    """
    plain, limit = plain_scores(model, examples)
    usual = model.side
    differences: dict[Side, float] = {}
    for side in sorted(SIDES, key=lambda side: side != usual):
        differences[side] = difference(score(model, examples, side=side).totals, plain)
        if differences[side] <= limit:
            model.side = side
            return {"padding_side": side, "forward_difference": differences[side], "forward_limit": limit}
    raise ValueError(
        f"{model.name}: scores differ from a plain forward by {differences[usual]:.3g} nats a token (limit "
        f"{limit:.2g}), padded on the other side by {min(differences.values()):.3g}: llm_bench's attention or padding "
        f"does not fit {type(model.module).__name__}; take another architecture"
    )


def difference(ours: Sequence[Any], plain: Sequence[Any]) -> float:
    """The root mean square over a row's options, of the row where it is largest; infinite where one is not finite."""
    rows = [float(np.sqrt(np.mean((a - b) ** 2))) for a, b in zip(ours, plain, strict=True)]
    return max(row if math.isfinite(row) else math.inf for row in rows)


def plain_scores(model: LanguageModel, examples: Sequence[Encoded]) -> tuple[list[Any], float]:
    """Log-likelihoods of the options of each example, whose rows are one each; and how far rounding may move them.

    A forward is a chain of about as many roundings as it has modules, each moves the logits by a share of their spread;
    two forwards differ by four standard deviations of that at most.
    """
    scores, spread = [], 0.0
    with transformers_attention(model.module), torch.inference_mode():
        for example in examples:
            row = torch.tensor([example.rows[0]], device=model.device)
            logits = _logits(model, row)[0].double()
            spread = max(spread, logits.std(dim=-1).max().item())
            likelihoods = logits.log_softmax(dim=-1).cpu()
            scores.append(np.array([_sum(likelihoods, example, option) for option in example.options]))
    return scores, _limit(model.module, spread)


def _limit(module: nn.Module, spread: float) -> float:
    return NEGLIGIBLE + forward_rounding(module) * spread


def runs_packed(model: LanguageModel, batch: Batch) -> bool:
    """Whether a model gives a batch's logits also where its tokens are packed (`llm_bench.models.packing`).

    Args:
        model: In evaluation mode.
        batch: From `collate`, on the CPU.
    """
    together = packed(batch, int(batch["attention_mask"].sum()))
    with torch.inference_mode():
        plain = site_logits(model.module, to_device(batch, model.device))
        try:
            ours = site_logits(model.module, to_device(together, model.device))
        except torch.OutOfMemoryError:
            raise
        except (ValueError, RuntimeError, IndexError):
            return False  # it takes nothing but rows
        limit = _limit(model.module, plain.std(dim=-1).max().item())
        return bool((plain.log_softmax(-1) - ours.log_softmax(-1)).square().mean().sqrt() <= limit)


def _logits(model: LanguageModel, row: Tensor) -> Tensor:
    more = {"use_cache": False} if accepts(model.module, "use_cache") else {}
    try:
        logits: Tensor = model.module(input_ids=row, **more).logits
    except torch.OutOfMemoryError:
        raise
    except Exception as err:
        raise ValueError(
            f"{model.name}: {type(model.module).__name__} does not run on tokens alone ({type(err).__name__}: {err}); "
            "take another architecture"
        ) from err
    return logits


def _sum(likelihoods: Tensor, example: Encoded, option: Sequence[tuple[int, int]]) -> float:
    return sum(likelihoods[example.sites[site][1], token].item() for site, token in option)


@contextmanager
def transformers_attention(module: Any) -> Iterator[None]:
    """Inside, the model attends by transformers' own code."""
    with quiet():
        module.set_attn_implementation("eager")
    try:
        yield
    finally:
        with quiet():
            module.set_attn_implementation(attention.NAME)
