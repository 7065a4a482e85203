"""Hours and bytes of a plan before it starts: from runs that the store has, else from the model's size."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from helene.lab.store import Record
from llm_bench.data.batches import COARSE_OPTION, COARSE_SITES, PAD_TO, multiple_of
from llm_bench.models.loading import DTYPES
from llm_bench.protocol.speed import Model, Speeds, loading_seconds
from llm_bench.protocol.work import TYPICAL_TOKENS, Work, typical
from llm_bench.runs import methods
from llm_bench.runs.config import UNTRAINED, RunConfig
from llm_bench.tasks import get_task

if TYPE_CHECKING:
    from llm_bench.models.step_memory import Prediction

OPTION_TOKENS = 8  # of an option that has several


@dataclass(frozen=True)
class Shape:
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


def shape_of(source: str | os.PathLike[str]) -> Shape:
    """Sizes of a model without loading its weights.

    Raises:
        ValueError: If the folder has no weights that can be read; see also `llm_bench.models.loading.load`.
    """
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(source).get_text_config()
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
    return Shape(total, embedding, config.vocab_size, config.hidden_size, config.num_hidden_layers)


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
    shapes: Mapping[str, Shape],
    records: Iterable[Record] = (),
    predict: Callable[[RunConfig], int] | None = None,
    work: Callable[[RunConfig], Work] = typical,
) -> Estimate:
    """What a plan will take.

    Args:
        configs: The runs.
        shapes: Of each model by name.
        records: Runs made before, on any task.
        predict: Peak bytes of a run, asked for the run that `step_bytes` takes for the largest.
        work: What a run computes.
    """
    speeds = Speeds(records, {name: Model(s.parameters, s.embedding, s.layers) for name, s in shapes.items()})
    seconds, peak, sources = loading_seconds() * len({config.model for config in configs}), 0, set()
    largest: RunConfig | None = None
    for config in configs:
        seconds += speeds.run(config, work(config))
        if config.method in UNTRAINED:
            continue
        shape = shapes[config.model]
        sources.add("measured" if speeds.known(config) else "counted")
        if step_bytes(config, shape) > peak:
            peak, largest = step_bytes(config, shape), config
    if predict is not None and largest is not None:
        peak = predict(largest)
    return Estimate(len(configs), seconds, peak, " and ".join(sorted(sources)) or "counted")


def step_bytes(config: RunConfig, shape: Shape) -> int:
    """A first guess at a step's peak, to find the largest run of many; `predict_run` is within a few percent."""
    size = DTYPES[config.dtype].itemsize
    trained = shape.parameters if config.tuning == "full" else 0
    states = {"Helene": 2, "ZOMomentum": 1, "ZOAdam": 2, "ZOAdamW": 2, "ZOLion": 1, "ZOSophia": 2, "ZONewton": 1}
    states |= {"HiZOO": 1, "Adam": 2, "AdamW": 2, "Lion": 1}
    state = states.get(methods.get_method(config.method).cls, 0) * 4 * trained
    tokens = config.batch_size * TYPICAL_TOKENS.get(config.task, 64)
    logits = config.batch_size * shape.vocabulary * 4 * 2
    if methods.is_first_order(config.method):
        layers = max(1, (shape.parameters - shape.embedding) // (12 * shape.hidden**2))
        return shape.parameters * size + 4 * trained + state + logits + tokens * layers * shape.hidden * size * 16
    scratch = shape.embedding * size if config.tuning == "full" else 0
    return shape.parameters * size + state + scratch + logits + tokens * shape.hidden * size * 12


def predict_run(config: RunConfig, source: str | os.PathLike[str]) -> Prediction:
    """Peak bytes of a run's steps on a GPU, by what holds them, from the model's configuration alone.

    Rows have the run's ``row_length``, else the task's typical number of tokens, and one row an example.

    Args:
        config: Of a method that trains.
        source: The model's folder or name.

    Raises:
        FileNotFoundError: If there is no such model.
    """
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    from llm_bench.evaluation.scoring import LOSSES
    from llm_bench.models import attention
    from llm_bench.models.live_bytes import fused_attention
    from llm_bench.models.loading import LanguageModel, _config
    from llm_bench.models.step_memory import predict
    from llm_bench.models.tuning import prepare

    auto = AutoModelForCausalLM if config.kind == "causal" else AutoModelForMaskedLM
    with torch.device("meta"):
        module = auto.from_config(_config(source), dtype=DTYPES[config.dtype], attn_implementation=attention.NAME)
    module.eval()
    model = LanguageModel(module, None, config.kind, config.model, "none", (), (), 0)
    with fused_attention():
        if config.tuning != "full":
            prepare(model, config.tuned_by())

    def factory(params: list[nn.Parameter]) -> Any:
        holder = nn.Module()
        holder.weight = params[0]
        steps = max(1, config.steps)
        return methods.build(
            config.method, holder, config.hyper_parameters(), seed=0, batch_size=config.batch_size, steps=steps
        )

    task = get_task(config.task, config.kind)
    return predict(module, LOSSES[task.loss], _typical_batch(config, task), factory, engine=config.engine)


def _typical_batch(config: RunConfig, task: Any) -> dict[str, torch.Tensor]:
    """A batch as `llm_bench.data.batches.collate` lays it out, on the meta device."""
    rows, time = config.batch_size, config.row_length or TYPICAL_TOKENS.get(config.task, 64)
    classes = len(task.classes) or 2
    options, sites, width = rows * classes, rows, 1
    if task.loss != "classification":
        options, sites = rows, multiple_of(rows * OPTION_TOKENS, COARSE_SITES if config.engine else PAD_TO)
        width = COARSE_OPTION if config.engine else OPTION_TOKENS

    def made(*size: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.empty(size, dtype=dtype, device="meta")

    batch = {"input_ids": made(rows, time), "attention_mask": made(rows, time)}
    batch |= {"site_rows": made(sites), "site_positions": made(sites)}
    batch |= {"option_sites": made(options, width), "option_tokens": made(options, width)}
    batch["option_mask"] = made(options, width, dtype=torch.float32)
    return batch | ({"labels": made(rows)} if task.loss == "classification" else {})
