"""Runs of seconds on random models, for tests of runs."""

import dataclasses

import torch
from llm_families import make

from helene.lab.runs import canonical
from llm_bench.runs.config import RunConfig
from llm_bench.runs.environment import resolved
from llm_bench.runs.run import run

SMALL = {"num_train": 48, "num_dev": 24, "num_test": 30}


def random_models(folder):
    """Sources of a tiny random model of each kind, saved in a folder."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    for family in ("opt", "roberta"):
        model = make(family, dtype=torch.float32, layers=1)
        model.module.save_pretrained(folder / family)
        model.tokenizer.save_pretrained(folder / family)
    return {family: str(folder / family) for family in ("opt", "roberta")}


def opt(**more):
    values = {"model": "opt", "kind": "causal", "task": "sst2", "method": "mezo", "lr": 1e-3, "eps": 1e-3, **SMALL}
    return RunConfig(**{**values, "tuning": "prefix", "steps": 12, "eval_every": 4, "batch_size": 4, **more})


def result_of(config, env, **changes):
    env = dataclasses.replace(env, **changes)
    return run(resolved(config, env).to_dict(), env)


def comparable(result):
    return canonical.without_seconds(canonical.plain(result))
