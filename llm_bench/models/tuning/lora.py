"""LoRA on the query and value projections, by peft."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import nn

from llm_bench.models.loading import LanguageModel
from llm_bench.models.tuning.base import Tuning, adapter_dtype, generator

# Names of the query and value projections; in fused layouts LoRA spans the key as well.
_PROJECTIONS = (
    ("q_proj", "v_proj"),
    ("query", "value"),
    ("q_lin", "v_lin"),
    ("c_attn",),
    ("query_key_value",),
    ("Wqkv",),
)


def add_lora(model: LanguageModel, tuning: Tuning) -> Any:
    """Inject the adapters; see `llm_bench.models.tuning.prepare`."""
    from peft import LoraConfig, inject_adapter_in_model

    names = {name.rpartition(".")[2] for name, _ in model.module.named_modules()}
    targets = next((list(pair) for pair in _PROJECTIONS if names.issuperset(pair)), None)
    if targets is None:
        raise ValueError(
            f"{type(model.module).__name__} has no query and value projections of a known name "
            f"({'; '.join(', '.join(pair) for pair in _PROJECTIONS)}); LoRA cannot be added"
        )
    config = LoraConfig(
        r=tuning.rank,
        lora_alpha=tuning.alpha,
        target_modules=targets,
        lora_dropout=0.0,
        fan_in_fan_out="c_attn" in targets,
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice on modules that are left alone
        inject_adapter_in_model(config, model.module)
    adapters: list[tuple[str, nn.Parameter]] = []
    dtype = adapter_dtype(model.module)
    for name, parameter in model.module.named_parameters():
        parameter.requires_grad_("lora_" in name)
        if "lora_" in name:
            parameter.data = parameter.data.to(dtype)
            adapters.append((name, parameter))
    model.module.eval()

    @torch.no_grad()
    def reset(seed: int) -> None:
        """B zero, so that a run begins at the model itself; A as peft draws it, U(−1/√n, 1/√n) for n inputs."""
        source = generator(seed, purpose=1)
        for name, parameter in adapters:
            if "lora_A" in name:
                bound = 1.0 / math.sqrt(parameter.shape[1])
                parameter.copy_(torch.empty(parameter.shape, dtype=dtype).uniform_(-bound, bound, generator=source))
            else:
                parameter.zero_()

    return reset
