"""Hours and bytes of a plan before it starts: from runs that the store has, else from the model's size."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from helene.lab.runs.store import Record
from helene.methods import ENTRIES
from llm_bench.models.loading import DTYPES
from llm_bench.protocol.speed import Model, Speeds, loading_seconds
from llm_bench.protocol.work import Work, typical
from llm_bench.runs import methods
from llm_bench.runs.config import UNTRAINED, RunConfig
from llm_bench.runs.predicted_memory import TYPICAL_TOKENS


@dataclass(frozen=True)
class ModelSize:
    """Sizes of a model.

    Attributes:
        parameters: All of them.
        embedding: Of the token embedding, which is counted once where it is tied.
        vocabulary: Tokens.
        hidden: Width.
        layers: Blocks.
    """

    parameters: int
    embedding: int
    vocabulary: int
    hidden: int
    layers: int = 12


def size_of(source: str | os.PathLike[str]) -> ModelSize:
    """Sizes of a model without loading its weights.

    Raises:
        ValueError: If the folder has no weights that can be read; see also `llm_bench.models.loading.load`.
    """
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(source, trust_remote_code=False).get_text_config()
    embedding = config.vocab_size * config.hidden_size
    total = 0
    for path in sorted(Path(source).glob("*.safetensors")) if os.path.isdir(source) else []:
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        for name, entry in header.items():
            if name != "__metadata__":
                size = 1
                for side in entry["shape"]:
                    size *= side
                total += size
    if not total:
        layers, width = config.num_hidden_layers, config.hidden_size
        total = embedding + 12 * layers * width * width  # a transformer's usual count
    return ModelSize(total, embedding, config.vocab_size, config.hidden_size, config.num_hidden_layers)


@dataclass(frozen=True)
class Estimate:
    """Of a list of runs.

    Attributes:
        runs: How many.
        seconds: Of all, one after the other: loading, steps, captures and evaluation.
        bytes: Of the largest.
        source: ``measured`` or ``counted``: whether runs like each were measured before.
    """

    runs: int
    seconds: float
    bytes: int
    source: str


def estimate(
    configs: Sequence[RunConfig],
    sizes: Mapping[str, ModelSize],
    records: Iterable[Record] = (),
    predict: Callable[[RunConfig], int] | None = None,
    work: Callable[[RunConfig], Work] = typical,
) -> Estimate:
    """What a plan will take.

    Args:
        configs: The runs.
        sizes: Of each model by name.
        records: Runs made before, on any task.
        predict: Peak bytes of a run, asked for the run that `step_bytes` takes for the largest.
        work: What a run computes.
    """
    speeds = Speeds(records, {name: Model(s.parameters, s.embedding, s.layers) for name, s in sizes.items()})
    seconds, peak, sources = loading_seconds() * len({config.model for config in configs}), 0, set()
    largest: RunConfig | None = None
    for config in configs:
        seconds += speeds.run(config, work(config))
        if config.method in UNTRAINED:
            continue
        size = sizes[config.model]
        sources.add("measured" if speeds.known(config) else "counted")
        if step_bytes(config, size) > peak:
            peak, largest = step_bytes(config, size), config
    if predict is not None and largest is not None:
        peak = predict(largest)
    return Estimate(len(configs), seconds, peak, " and ".join(sorted(sources)) or "counted")


def step_bytes(config: RunConfig, model: ModelSize) -> int:
    """A first guess at a step's peak, to find the largest run of many; `predict_run` is within a few percent."""
    size = DTYPES[config.dtype].itemsize
    trained = model.parameters if config.tuning == "full" else 0
    states = {entry.cls: entry.state for entry in ENTRIES}
    state = states[methods.get_method(config.method).cls] * 4 * trained
    tokens = config.batch_size * TYPICAL_TOKENS.get(config.task, 64)
    logits = config.batch_size * model.vocabulary * 4 * 2
    if methods.is_first_order(config.method):
        layers = max(1, (model.parameters - model.embedding) // (12 * model.hidden**2))
        return model.parameters * size + 4 * trained + state + logits + tokens * layers * model.hidden * size * 16
    scratch = model.embedding * size if config.tuning == "full" else 0
    return model.parameters * size + state + scratch + logits + tokens * model.hidden * size * 12
