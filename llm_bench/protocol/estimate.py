"""Hours and bytes of a plan before it starts: from runs that the store has, else from the model's size."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helene.lab.store import Record
from llm_bench.models.loading import DTYPES
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
    """

    parameters: int
    embedding: int
    vocabulary: int
    hidden: int


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
    return ModelSize(total, embedding, config.vocab_size, config.hidden_size)


@dataclass(frozen=True)
class Estimate:
    """Of a list of runs.

    Attributes:
        runs: How many.
        seconds: Training seconds of all, one after the other.
        bytes: Of the largest.
        source: ``measured`` or ``counted``: whether each run's speed was known from the store.
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
) -> Estimate:
    """What a plan will take.

    Args:
        configs: The runs.
        sizes: Of each model by name.
        records: Runs made before: seconds a step are taken from those of the same cell.
        predict: Peak bytes of a run, asked for the run that `step_bytes` takes for the largest.
    """
    known: dict[Any, list[float]] = {}
    for record in records:
        result = record.result
        if result.get("steps"):
            known.setdefault(_speed_key(record.config), []).append(result["training_seconds"] / result["steps"])
    seconds, peak, sources = 0.0, 0, set()
    largest: RunConfig | None = None
    for config in configs:
        if config.method in UNTRAINED:
            continue
        model, measured = sizes[config.model], known.get(_speed_key(config.to_dict()))
        sources.add("measured" if measured else "counted")
        a_step = statistics.median(measured) if measured else _counted_seconds(config, model)
        seconds += a_step * config.steps
        if step_bytes(config, model) > peak:
            peak, largest = step_bytes(config, model), config
    if predict is not None and largest is not None:
        peak = predict(largest)
    return Estimate(len(configs), seconds, peak, " and ".join(sorted(sources)) or "counted")


def step_bytes(config: RunConfig, model: ModelSize) -> int:
    """A first guess at a step's peak, to find the largest run of many; `predict_run` is within a few percent."""
    size = DTYPES[config.dtype].itemsize
    trained = model.parameters if config.tuning == "full" else 0
    states = {"Helene": 2, "ZOMomentum": 1, "ZOAdam": 2, "ZOAdamW": 2, "ZOLion": 1, "ZOSophia": 2, "ZONewton": 1}
    states |= {"HiZOO": 1, "Adam": 2, "AdamW": 2, "Lion": 1}
    state = states.get(methods.get_method(config.method).cls, 0) * 4 * trained
    tokens = config.batch_size * TYPICAL_TOKENS.get(config.task, 64)
    logits = config.batch_size * model.vocabulary * 4 * 2
    if methods.is_first_order(config.method):
        layers = max(1, (model.parameters - model.embedding) // (12 * model.hidden**2))
        return model.parameters * size + 4 * trained + state + logits + tokens * layers * model.hidden * size * 16
    scratch = model.embedding * size if config.tuning == "full" else 0
    return model.parameters * size + state + scratch + logits + tokens * model.hidden * size * 12


def _counted_seconds(config: RunConfig, model: ModelSize) -> float:
    forwards = 3 if methods.is_first_order(config.method) else 2
    tokens = config.batch_size * (config.row_length or TYPICAL_TOKENS.get(config.task, 64))
    body = (model.parameters - model.embedding) * tokens + model.embedding * config.batch_size
    moved = 3 * model.parameters * DTYPES[config.dtype].itemsize if config.tuning == "full" else 0
    rate, traffic = _rates(config)
    return forwards * body / rate + moved / traffic


def _rates(config: RunConfig) -> tuple[float, float]:
    """Multiply-adds and bytes a second that a device sustains; only used where no run has been measured."""
    if config.device == "cpu":
        return 2e10, 5e9
    return (2.5e13 if config.dtype == "float32" else 2e14), 2e12


def _speed_key(config: Mapping[str, Any]) -> tuple[Any, ...]:
    names = ("model", "kind", "task", "method", "tuning", "dtype", "device", "batch_size", "engine")
    return tuple(config[name] for name in names)
