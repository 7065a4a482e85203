"""What runs of one model and one task share: the loaded weights and the rows in tokens, made once."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from helene.engine.ranks import Ranks
from llm_bench.data import token_cache
from llm_bench.data.batches import AS_NEEDED, Batch, OptionSizes, collate, packed, to_device
from llm_bench.data.encode import Encoded
from llm_bench.data.row_lengths import RunSizes, length_of, needs_of
from llm_bench.data.splits import Split
from llm_bench.data.stream import BatchStream, shares
from llm_bench.evaluation import evaluate
from llm_bench.evaluation.plain_forward import runs_packed
from llm_bench.evaluation.preflight import preflight
from llm_bench.evaluation.scoring import EXAMPLE_LOSSES, LOSSES
from llm_bench.models import attention, loading, tuning
from llm_bench.models.loading import LanguageModel
from llm_bench.models.positions import accepts
from llm_bench.runs import methods, products
from llm_bench.runs.config import RunConfig
from llm_bench.runs.environment import Environment, split_of
from llm_bench.runs.meters import PeakBytes
from llm_bench.tasks import Task, get_task


@dataclass
class Tokens:
    """A split in tokens.

    Attributes:
        task: What they are examples of.
        split: The rows.
        train: As the training loss needs them: all options, or the right one alone.
        dev: With all options.
        test: With all options, made when first asked for.
    """

    task: Task
    split: Split
    train: list[Encoded]
    dev: list[Encoded]
    test: list[Encoded] | None = None


class Session:
    """One model with one tuning on one device, for any number of runs.

    Args:
        config: Of the first run; later ones must agree in model, dtype and tuning.
        env: Where things are.
        model: One that is loaded already.
    """

    def __init__(self, config: RunConfig, env: Environment, model: LanguageModel | None = None) -> None:
        self.env = env
        self.peaks = PeakBytes(torch.device(env.device))
        with self.peaks.phase("load"):
            self.model = model or loading.load(env.source(config.model), config.kind, config.dtype, env.device)
            self.reset: tuning.Reset = tuning.prepare(self.model, config.tuned_by())
        self._tokens: dict[Any, Tokens] = {}
        self._found_sizes: dict[Any, RunSizes] = {}
        self._packs: bool | None = None  # not known before the first captured step
        self._preflights: dict[str, dict[str, Any]] = {}

    def fresh_peaks(self) -> PeakBytes:
        """Peaks for one run: of the load, and nothing that another run held at once.

        What earlier runs held goes first: an engine and its optimizer refer to each other, so it takes a collection.
        """
        gc.collect()
        if self.model.device.type == "cuda":
            # One a stream that an engine had: 32 MiB each, which nothing else gives back.
            getattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None)()
            torch.cuda.empty_cache()
        peaks = PeakBytes(self.model.device)
        peaks.peaks.update(self.peaks.peaks)
        return peaks

    def tokens(self, config: RunConfig) -> Tokens:
        """The run's split in tokens; dev and training rows now, test rows only once they are asked for."""
        key = (config.task, config.data_seed, config.k, config.num_train, config.num_dev, config.num_test)
        if key not in self._tokens:
            task, split = get_task(config.task, config.kind), split_of(config, self.env)
            train = self.encoded(task, split.train)
            if task.loss == "language_model":
                train = [example.only_gold() for example in train]
            self._tokens[key] = Tokens(task, split, train, self.encoded(task, split.dev))
        return self._tokens[key]

    def test_tokens(self, config: RunConfig) -> list[Encoded]:
        """The test rows in tokens."""
        tokens = self.tokens(config)
        if tokens.test is None:
            tokens.test = self.encoded(tokens.task, tokens.split.test)
        return tokens.test

    def encoded(self, task: Task, rows: Sequence[dict[str, Any]]) -> list[Encoded]:
        """Rows in tokens, from the cache on disk where they are there."""
        return token_cache.encoded(self.model, task, [task.make(row) for row in rows])

    def check(self, config: RunConfig) -> dict[str, Any]:
        """The preflight of the run's task, made once, on the untrained model."""
        if config.task not in self._preflights:
            self.reset(0)
            tokens, source = self.tokens(config), self.env.source(config.model)
            with attention.without_prefixes():
                self._preflights[config.task] = preflight(
                    self.model, tokens.task, tokens.dev[:16], source=source, pretrained=self.env.pretrained
                )
        return self._preflights[config.task]

    def batch(self, config: RunConfig, rows: Sequence[int]) -> Batch:
        """A training batch on the device; of several ranks this one's share, of the shape that all shares have."""
        train, device = self.tokens(config).train, self.model.device
        parts = shares([train[row] for row in rows], config.ranks)
        examples = parts[Ranks().rank]
        if not config.engine:
            length = max(config.row_length, length_of(needs_of(parts)[0], ()))
            return to_device(self._rows(config, examples, length), device)
        sizes, (longest, _, tokens) = self._sizes(config), needs_of(parts, config.row_length)
        if not self.packs(config):
            return to_device(self._rows(config, examples, length_of(longest, sizes.lengths), sizes.options), device)
        together = self._rows(config, examples, sizes.packed.length(longest), sizes.options)
        return to_device(packed(together, sizes.packed.total(longest, tokens)), device)

    def packs(self, config: RunConfig) -> bool:
        """Whether steps run on packed tokens: the method may, and the model gives what it gives for padded rows."""
        if not methods.takes_packed(config.method) or not accepts(self.model.module, "position_ids"):
            return False
        if self._packs is None:
            batch = self._rows(config, self.tokens(config).train[:4], 0)
            self._packs = runs_packed(self.model, batch)
        return self._packs

    def _rows(
        self, config: RunConfig, examples: Sequence[Encoded], length: int, options: OptionSizes = AS_NEEDED
    ) -> Batch:
        return collate(
            examples,
            self.model.pad_id,
            self.model.side,
            labels=self.tokens(config).task.loss == "classification",
            length=length,
            options_at_least=options,
        )

    def _sizes(self, config: RunConfig) -> RunSizes:
        """Sizes of the run's batches, found once."""
        names = ("task", "data_seed", "k", "num_train", "num_dev", "num_test", "batch_size", "steps", "row_length")
        key = tuple(getattr(config, name) for name in (*names, "ranks"))
        if key not in self._found_sizes:
            train = self.tokens(config).train
            stream = BatchStream(len(train), config.batch_size, config.data_seed)
            batches = ([train[row] for row in stream.rows(step)] for step in range(1, config.steps + 1))
            self._found_sizes[key] = RunSizes(batches, config.row_length, config.ranks)
        return self._found_sizes[key]

    def loss(self, config: RunConfig) -> Any:
        """The task's training loss, a function of module and batch; of each example where the method asks for that."""
        losses = EXAMPLE_LOSSES if methods.takes_examples(config.method) else LOSSES
        call = losses[self.tokens(config).task.loss]
        return products.forwards_of(call, config.products, self.model.device.type)


_open: dict[Any, Session] = {}


def session(config: RunConfig, env: Environment) -> Session:
    """The session of a config, kept until a run needs another one: loading takes longer than many runs."""
    key = (
        env.data,
        env.source(config.model),
        env.device,
        env.pretrained,
        config.fingerprint,
        config.kind,
        config.dtype,
        config.tuned_by(),
    )
    if key not in _open:
        close_sessions()
        _open[key] = Session(config, env)
    _open[key].env = env  # what is shown and saved may differ from run to run
    return _open[key]


def close_sessions() -> None:
    """Give back the memory of the session that is open."""
    _open.clear()
    evaluate.forget()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
