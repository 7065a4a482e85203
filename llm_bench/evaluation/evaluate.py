"""Scoring a set of examples: rows sorted by length, logits only where needed, one synchronization at the end."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from llm_bench.data.batches import Batch, Side, collate
from llm_bench.data.encode import Encoded
from llm_bench.evaluation import generation, metrics
from llm_bench.evaluation.scoring import token_log_likelihoods
from llm_bench.models.loading import LanguageModel
from llm_bench.tasks.task import Task

TOKENS_ON_CPU, TOKENS_ON_GPU = 4096, 32768
FULL_ON_CPU, FULL_ON_GPU = 256, 2048  # tokens that keep the device busy: from there on padding costs more than it saves
PADDING = 1.1  # padded tokens of a full batch over its own, at most
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
        side: Where rows are filled up; the model's own unless given.

    Raises:
        FloatingPointError: If a log-likelihood is not finite.
    """
    made = prepared(model, examples, max_tokens, max_rows, side)
    totals = np.zeros(len(made.counts))
    with torch.inference_mode():
        sums = [token_log_likelihoods(model.module, batch).double().sum(dim=-1) for batch in made.batches]
    if sums:
        totals[made.places] = torch.cat(sums).cpu().numpy()
    if not np.isfinite(totals).all():
        raise FloatingPointError("a log-likelihood is not finite; the weights or the dtype's range are to blame")
    spans = list(pairwise(made.first))
    return Scores([totals[a:b] for a, b in spans], [made.counts[a:b] for a, b in spans])


@dataclass(frozen=True)
class Prepared:
    """A set of examples as batches on the device.

    Attributes:
        examples: The set, kept so that no other object takes their place in memory.
        batches: Of its rows, longest first.
        places: Of the options in the order of the batches, among all options.
        counts: Tokens of each option.
        first: Where each example's options begin, one entry more than examples.
    """

    examples: tuple[Encoded, ...]
    batches: list[Batch]
    places: NDArray[np.int64]
    counts: NDArray[np.int64]
    first: list[int]

    @property
    def tokens(self) -> tuple[int, int]:
        """Tokens of the rows, and tokens computed, padding included."""
        own = sum(int(batch["attention_mask"].sum()) for batch in self.batches)
        return own, sum(batch["input_ids"].numel() for batch in self.batches)


_KEPT = 4
_prepared: OrderedDict[Any, Prepared] = OrderedDict()


def prepared(
    model: LanguageModel,
    examples: Sequence[Encoded],
    max_tokens: int | None = None,
    max_rows: int | None = None,
    side: Side | None = None,
) -> Prepared:
    """The batches of a set; those of the last few sets are kept, since dev is looked at many times."""
    device = model.device
    on_cpu = device.type == "cpu"
    max_tokens = max_tokens or (TOKENS_ON_CPU if on_cpu else TOKENS_ON_GPU)
    full = FULL_ON_CPU if on_cpu else FULL_ON_GPU
    side = side or model.side
    max_sites = max(1, LOGITS_AT_ONCE // model.module.config.get_text_config().vocab_size)
    limits = (max_tokens, max_rows or 1 << 62, max_sites, full)
    key = (tuple(map(id, examples)), model.pad_id, side, str(device), limits)
    if key in _prepared:
        _prepared.move_to_end(key)
        return _prepared[key]
    rows, first = rows_of(examples)
    counts = np.zeros(first[-1], np.int64)
    made: list[Batch] = []
    places: list[int] = []
    for chunk in batches(rows, *limits):
        made.append(collate([row.encoded for row in chunk], model.pad_id, side, device=device))
        for row in chunk:
            counts[list(row.options)] = [len(option) for option in row.encoded.options]
            places += row.options
    kept = Prepared(tuple(examples), made, np.array(places, np.int64), counts, first)
    _prepared[key] = kept
    if len(_prepared) > _KEPT:
        _prepared.popitem(last=False)
    return kept


def forget() -> None:
    """Give back the kept batches."""
    _prepared.clear()


@dataclass(frozen=True)
class ScoredRow:
    """One row of an example as an example of its own, and which options (numbered over all examples) it scores."""

    encoded: Encoded
    options: tuple[int, ...]


def rows_of(examples: Sequence[Encoded]) -> tuple[list[ScoredRow], list[int]]:
    """Each row on its own, and where each example's options begin (one entry more than examples)."""
    rows, first = [], [0]
    for example in examples:
        for index, tokens in enumerate(example.rows):
            places = [place for place, site in enumerate(example.sites) if site[0] == index]
            renumbered = {place: new for new, place in enumerate(places)}
            owned = [k for k, option in enumerate(example.options) if option[0][0] in renumbered]
            options = tuple(tuple((renumbered[s], token) for s, token in example.options[k]) for k in owned)
            sites = tuple((0, example.sites[place][1]) for place in places)
            rows.append(ScoredRow(Encoded((tokens,), sites, options, (0,)), tuple(first[-1] + k for k in owned)))
        first.append(first[-1] + len(example.options))
    return rows, first


def batches(
    rows: Sequence[ScoredRow], max_tokens: int, max_rows: int, max_sites: int, full: int
) -> Iterator[list[ScoredRow]]:
    """Longest rows first: memory peaks at once, and each batch is hardly longer than its shortest row.

    A batch ends at ``max_tokens`` (padding included), ``max_rows`` or ``max_sites``; and, once it has ``full`` tokens,
    where another row would make padded tokens more than `PADDING` times its own.
    """
    chunk: list[ScoredRow] = []
    sites = own = 0
    for row in sorted(rows, key=lambda row: -len(row.encoded.rows[0])):
        length = len(row.encoded.rows[0])
        padded = len((chunk or [row])[0].encoded.rows[0]) * (len(chunk) + 1)
        more = sites + len(row.encoded.sites)
        over = padded > max_tokens or len(chunk) == max_rows or more > max_sites
        if chunk and (over or (own >= full and padded > PADDING * (own + length))):
            yield chunk
            chunk, more, own = [], len(row.encoded.sites), 0
        chunk.append(row)
        sites, own = more, own + length
    if chunk:
        yield chunk
