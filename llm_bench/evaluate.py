"""Scoring a set of examples: rows sorted by length, logits only where needed, one synchronization at the end."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from llm_bench import generation, metrics
from llm_bench.batches import Side, collate
from llm_bench.encode import Encoded
from llm_bench.models import LanguageModel
from llm_bench.scoring import token_log_likelihoods
from llm_bench.tasks.base import Task

TOKENS_ON_CPU, TOKENS_ON_GPU = 4096, 32768
LOGITS_AT_ONCE = 1 << 27  # half a gigabyte in float32


@dataclass(frozen=True)
class Scores:
    """Log-likelihoods of each example's options.

    Attributes:
        totals: Per example, the sum over each option's tokens, float64.
        counts: Per example, the number of tokens of each option.
    """

    totals: list[NDArray[np.float64]]
    counts: list[NDArray[np.int64]]

    @property
    def means(self) -> list[NDArray[np.float64]]:
        """Mean log-likelihood of each option: what options are compared by."""
        return [total / count for total, count in zip(self.totals, self.counts, strict=True)]


@dataclass(frozen=True)
class Evaluation:
    """What a set of examples says of a model.

    Attributes:
        metric: Accuracy or token F1, in [0, 1].
        loss: The task's training loss on the whole set (nats).
        option_loss: Cross-entropy over the options, where there are several; else equal to ``loss``.
        auc: For two options.
        num_examples: Size of the set.
        scores: Mean log-likelihoods of the options, per example.
        predictions: Generated answers, for token F1.
    """

    metric: float
    loss: float
    option_loss: float
    auc: float | None
    num_examples: int
    scores: list[NDArray[np.float64]] = field(repr=False)
    predictions: list[str] = field(default_factory=list, repr=False)

    def summary(self) -> dict[str, Any]:
        """The numbers, for a record."""
        names = ("metric", "loss", "option_loss", "auc", "num_examples")
        return {name: getattr(self, name) for name in names}


def evaluate(
    model: LanguageModel, task: Task, examples: Sequence[Encoded], *, generate: bool = True, **options: Any
) -> Evaluation:
    """Metric and losses of a model on encoded examples.

    Args:
        model: In evaluation mode.
        task: Gives metric and loss.
        examples: At least one.
        generate: Whether answers are generated where the metric needs them; without, it is nan there.
        options: As of `score`.
    """
    scores = score(model, examples, **options)
    gold = [example.gold for example in examples]
    first = [(t[g[0]], c[g[0]]) for t, c, g in zip(scores.totals, scores.counts, gold, strict=True)]
    language = -sum(total for total, _ in first) / sum(count for _, count in first)
    several = all(len(example.options) > 1 for example in examples)
    option = metrics.option_loss(scores.means, gold) if several else float(language)
    predictions: list[str] = []
    if task.generates and not generate:
        metric = math.nan
    elif task.generates:
        predictions = generation.generate(model, [example.prompt for example in examples], task.max_new_tokens)
        references = [example.references for example in examples]
        f1 = [metrics.token_f1(p, r) for p, r in zip(predictions, references, strict=True)]
        metric = float(np.mean(f1))
    else:
        metric = metrics.accuracy(scores.means, gold)
    return Evaluation(
        metric,
        option if task.loss == "classification" else float(language),
        option,
        metrics.auc(scores.means, gold),
        len(examples),
        scores.means,
        predictions,
    )


def score(
    model: LanguageModel,
    examples: Sequence[Encoded],
    *,
    max_tokens: int | None = None,
    max_rows: int | None = None,
    side: Side | None = None,
) -> Scores:
    """Log-likelihoods of all options of all examples; the same, rounding apart, whatever the batches.

    Args:
        model: In evaluation mode.
        examples: In any order.
        max_tokens: Most tokens (padding included) of a batch.
        max_rows: Most rows of a batch.
        side: Where rows are filled up; left for causal models, right for masked ones.

    Raises:
        FloatingPointError: If a log-likelihood is not finite.
    """
    device = model.device
    max_tokens = max_tokens or (TOKENS_ON_CPU if device.type == "cpu" else TOKENS_ON_GPU)
    side = side or ("left" if model.kind == "causal" else "right")
    rows, first_option = _rows(examples)
    totals = np.zeros(first_option[-1])
    counts = np.zeros(first_option[-1], np.int64)
    pending = []
    max_sites = max(1, LOGITS_AT_ONCE // model.module.config.get_text_config().vocab_size)
    with torch.inference_mode():
        for chunk in _batches(rows, max_tokens, max_rows or len(rows), max_sites):
            batch = collate([row.encoded for row in chunk], model.pad_id, side, device=device)
            sums = token_log_likelihoods(model.module, batch).double().sum(dim=-1)
            pending.append(([index for row in chunk for index in row.options], sums))
            for row in chunk:
                counts[list(row.options)] = [len(option) for option in row.encoded.options]
    if pending:
        values = torch.cat([sums for _, sums in pending]).cpu().numpy()
        totals[[index for indices, _ in pending for index in indices]] = values
    if not np.isfinite(totals).all():
        raise FloatingPointError("a log-likelihood is not finite; the weights or the dtype's range are to blame")
    spans = list(pairwise(first_option))
    return Scores([totals[a:b] for a, b in spans], [counts[a:b] for a, b in spans])


@dataclass(frozen=True)
class _Row:
    """One row of an example as an example of its own, and which options (numbered over all examples) it scores."""

    encoded: Encoded
    options: tuple[int, ...]


def _rows(examples: Sequence[Encoded]) -> tuple[list[_Row], list[int]]:
    rows, first = [], [0]
    for example in examples:
        for index, tokens in enumerate(example.rows):
            places = [place for place, site in enumerate(example.sites) if site[0] == index]
            renumbered = {place: new for new, place in enumerate(places)}
            owned = [k for k, option in enumerate(example.options) if option[0][0] in renumbered]
            options = tuple(tuple((renumbered[s], token) for s, token in example.options[k]) for k in owned)
            sites = tuple((0, example.sites[place][1]) for place in places)
            rows.append(_Row(Encoded((tokens,), sites, options, (0,)), tuple(first[-1] + k for k in owned)))
        first.append(first[-1] + len(example.options))
    return rows, first


def _batches(rows: Sequence[_Row], max_tokens: int, max_rows: int, max_sites: int) -> Iterator[list[_Row]]:
    """Longest rows first: memory peaks at once, and each batch is hardly longer than its shortest row."""
    chunk: list[_Row] = []
    sites = 0
    for row in sorted(rows, key=lambda row: -len(row.encoded.rows[0])):
        longest = len((chunk or [row])[0].encoded.rows[0])
        more = sites + len(row.encoded.sites)
        if chunk and (longest * (len(chunk) + 1) > max_tokens or len(chunk) == max_rows or more > max_sites):
            yield chunk
            chunk, more = [], len(row.encoded.sites)
        chunk.append(row)
        sites = more
    if chunk:
        yield chunk
