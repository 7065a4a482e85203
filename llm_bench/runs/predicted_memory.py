"""Peak bytes of a run on a GPU, from the model's configuration alone."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn

from llm_bench.data.batches import INDICES
from llm_bench.evaluation.scoring import LOSSES
from llm_bench.models import attention
from llm_bench.models.live_bytes import fused_attention
from llm_bench.models.loading import DTYPES, LanguageModel, _config
from llm_bench.models.step_memory import Prediction, predict
from llm_bench.models.tuning import prepare
from llm_bench.runs import methods
from llm_bench.runs.config import RunConfig
from llm_bench.tasks import get_task

# Padded tokens of a row in batches of 16 rows; with Gemma's tokenizer where it was counted. A row has half as many.
TYPICAL_TOKENS = {"sst2": 40, "sst5": 40, "trec": 20, "snli": 40, "mnli": 60, "rte": 192, "cb": 200, "boolq": 320}
TYPICAL_TOKENS |= {"wsc": 96, "wic": 61, "copa": 24, "record": 352, "squad": 355}
OPTION_TOKENS = 8  # of an option that has several


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

    from helene.engine.batches import twice

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
    batch = _typical_batch(config, task)
    if config.engine and methods.takes_examples(config.method):
        batch = twice(batch, INDICES)
    return predict(module, LOSSES[task.loss], batch, factory, engine=bool(config.engine))


def _typical_batch(config: RunConfig, task: Any) -> dict[str, torch.Tensor]:
    """A batch as `llm_bench.data.batches.collate` lays it out, on the meta device."""
    rows, time = config.batch_size, config.row_length or TYPICAL_TOKENS.get(config.task, 64)
    classes = len(task.classes) or 2
    options, sites, width = rows * classes, rows, 1
    if task.loss != "classification":
        options, sites, width = rows, rows * OPTION_TOKENS, OPTION_TOKENS

    def made(*size: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.empty(size, dtype=dtype, device="meta")

    batch = {"input_ids": made(rows, time), "attention_mask": made(rows, time)}
    batch |= {"site_rows": made(sites), "site_positions": made(sites)}
    batch |= {"option_sites": made(options, width), "option_tokens": made(options, width)}
    batch["option_mask"] = made(options, width, dtype=torch.float32)
    return batch | ({"labels": made(rows)} if task.loss == "classification" else {})
