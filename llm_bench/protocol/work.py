"""What a run computes, in tokens: from its own rows and tokenizer, or from the task's usual lengths."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from llm_bench.data import token_cache
from llm_bench.data.batches import PAD_TO, multiple_of
from llm_bench.data.encode import Encoded
from llm_bench.data.row_lengths import RunSizes, length_of
from llm_bench.data.stream import BatchStream
from llm_bench.models.loading import LanguageModel, load_tokenizer, special_tokens
from llm_bench.runs import methods
from llm_bench.runs.config import UNTRAINED, RunConfig
from llm_bench.runs.environment import Environment, split_of
from llm_bench.runs.predicted_memory import TYPICAL_TOKENS
from llm_bench.tasks import get_task

TYPICAL_DEV, TYPICAL_TEST, TYPICAL_SITES = 500, 1000, 6
SHOWN = 32  # demonstrations in context
_LONGEST = 1 << 15


@dataclass(frozen=True)
class Work:
    """Of one run.

    Attributes:
        padded: Tokens of a step, padding included.
        sites: Places of a step whose logits are computed.
        shapes: Shapes of batches, each captured where steps are.
        train: Tokens of the training rows, each once.
        dev: Of the dev rows.
        test: Of the test rows.
        test_rows: Their number.
    """

    padded: float
    sites: float
    shapes: int
    train: float
    dev: float
    test: float
    test_rows: int


def typical(config: RunConfig) -> Work:
    """From the task's usual lengths, split sizes as asked for."""
    task, row = get_task(config.task, config.kind), TYPICAL_TOKENS.get(config.task, 64)
    options = 1 if task.loss == "classification" else 2
    few = (len(task.classes) or 2) * (config.k or 0)
    dev, train = config.num_dev or few or TYPICAL_DEV, few or config.num_train
    batch = min(config.batch_size, train)
    length, mean = max(config.row_length, row), row / 2 * options
    shapes = 1 if config.row_length >= row or batch == train else 4  # the same rows at each step have one length
    return Work(
        batch * length,
        _sites(config, batch, TYPICAL_SITES * batch),
        shapes,
        train * row / 2,
        dev * mean,
        TYPICAL_TEST * mean,
        TYPICAL_TEST,
    )


def counted(config: RunConfig, env: Environment) -> Work:
    """From the rows themselves, in the tokens of the model's tokenizer; test rows by the split's dev rows' length.

    Raises:
        ValueError: If the model has no tokenizer, or the task not enough rows.
        FileNotFoundError: If there is no data.
    """
    task, split = get_task(config.task, config.kind), split_of(config, env)
    model = _tokenizing(env.source(config.model), config.kind)
    train, dev = (
        token_cache.encoded(model, task, [task.make(row) for row in rows]) for rows in (split.train, split.dev)
    )
    if task.loss != "classification":
        train = [example.only_gold() for example in train]
    dev_tokens = _tokens(dev)
    mean = dev_tokens / max(1, len(dev))
    if config.method in UNTRAINED:
        return Work(0, 0, 0, _tokens(train), dev_tokens, mean * len(split.test), len(split.test))
    stream = BatchStream(len(train), config.batch_size, config.data_seed)
    steps = range(1, min(config.steps, 2000) + 1)
    sizes = RunSizes(([train[i] for i in stream.rows(step)] for step in steps), config.row_length)
    padded, shapes = _places(config, sizes)
    own = sum(len(e.sites) for e in train) / len(train) * stream.batch_size
    sites = _sites(config, stream.batch_size, sizes.options.sites if config.engine else own)
    test = mean * len(split.test)
    return Work(padded, sites, shapes, _tokens(train), dev_tokens, test, len(split.test))


def _places(config: RunConfig, sizes: RunSizes) -> tuple[float, int]:
    """Places of a step in the mean, and shapes of batches that are captured; a model that packs is supposed."""
    needs, packed = sizes.needs, sizes.packed
    if config.engine and methods.takes_packed(config.method):
        return sum(packed.total(longest, tokens) for longest, _, tokens in needs) / len(needs), packed.count
    lengths = sizes.lengths if config.engine else ()
    return sum(length_of(longest, lengths) * count for longest, count, _ in needs) / len(needs), len(lengths)


def _sites(config: RunConfig, batch: int, own: float) -> float:
    """Places of a step's options; those of several tokens are rounded up."""
    if get_task(config.task, config.kind).loss == "classification":
        return batch
    return multiple_of(int(own), PAD_TO)


def _tokens(examples: list[Encoded]) -> float:
    return float(sum(len(row) for example in examples for row in example.rows))


@lru_cache(maxsize=4)
def _tokenizing(source: str, kind: str) -> LanguageModel:
    tokenizer = load_tokenizer(Path(source) if Path(source).is_dir() else source)
    before, after = special_tokens(tokenizer)
    return LanguageModel(None, tokenizer, kind, source, "none", before, after, _LONGEST)  # type: ignore[arg-type]
