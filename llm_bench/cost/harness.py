"""What the harness costs beside the model: evaluation against pure forwards, and a step outside forward and update.

Evaluation is that of the model which is given. The step is one of random weights in the shape of OPT-1.3B: time does
not ask what a model knows.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import torch

from helene.lab.runs import provenance as origin
from helene.lab.runs.store import Record, Store
from llm_bench.cost.step_profile import step_calls
from llm_bench.cost.timeline import account, profile
from llm_bench.cost.timing import seconds_of
from llm_bench.evaluation.evaluate import evaluate, prepared
from llm_bench.evaluation.scoring import token_log_likelihoods
from llm_bench.models import loading
from llm_bench.models.loading import DTYPES, LanguageModel
from llm_bench.models.shapes import build
from llm_bench.runs.config import RunConfig
from llm_bench.runs.environment import environment
from llm_bench.runs.session import Session
from llm_bench.runs.training.checkpoint import Folder
from llm_bench.runs.training.loop import Training
from llm_bench.runs.training.stepper import engine_available
from llm_bench.tiny.tokenizer import make_tokenizer

EXPERIMENT = "llm/harness"


def evaluation_cost(session: Session, config: RunConfig) -> dict[str, Any]:
    """Seconds of evaluating the training rows, and of the forwards in it alone.

    Returns:
        ``first_seconds``, of the first evaluation, which makes the batches; ``evaluate_seconds``, of later ones, and
        ``forward_seconds``, of the same batches alone with the logits that are needed, medians of five;
        ``ratio`` of the two; ``padding``, tokens computed over tokens; ``examples``, ``tokens``, ``batches``.
    """
    model, tokens = session.model, session.tokens(config)
    task, examples = tokens.task, tokens.train
    device = model.device
    evaluate(model, task, examples[:64])  # kernels are loaded
    first = seconds_of(lambda: evaluate(model, task, examples), device)
    made = prepared(model, examples)
    sums: list[Any] = []

    def forwards() -> None:
        sums.clear()
        with torch.inference_mode():
            sums.extend(token_log_likelihoods(model.module, batch) for batch in made.batches)

    def whole() -> None:
        evaluate(model, task, examples)

    forwards()
    pairs = [(seconds_of(forwards, device), seconds_of(whole, device)) for _ in range(5)]
    alone, together = (statistics.median(column) for column in zip(*pairs, strict=True))
    num_tokens, computed = made.tokens
    return {
        "first_seconds": first,
        "evaluate_seconds": together,
        "forward_seconds": alone,
        "ratio": together / alone,
        "padding": computed / num_tokens,
        "examples": len(examples),
        "tokens": num_tokens,
        "batches": len(made.batches),
    }


def step_cost(session: Session, config: RunConfig, steps: int = 20) -> dict[str, Any]:
    """The share of a training step's time in which neither a forward nor the update runs.

    Returns:
        ``step_seconds``; ``share_outside``: on a GPU of the time between a step's kernels and copies of batches, as
        `llm_bench.cost.timeline.account` tells, on a CPU what making batches adds; ``ready_seconds``, a step with
        batches made beforehand; ``parts`` on a GPU.
    """
    training = Training(config, session, Folder(None, ""))
    make, ready, _ = step_calls(training, steps)
    for _ in range(2 * (steps + 3)):  # a shape's first step runs without a graph, its second is captured
        make()
    ready_seconds, step_seconds = (seconds_of(call, training.session.model.device, steps) for call in (ready, make))
    result: dict[str, Any] = {"step_seconds": step_seconds, "ready_seconds": ready_seconds}
    if training.session.model.device.type != "cuda":
        return {**result, "share_outside": max(0.0, 1.0 - ready_seconds / step_seconds)}
    found = account(profile(make, steps), steps)
    idle = sum(seconds for name, seconds in found["parts"].items() if name in ("gap", "staging"))
    return {**result, "share_outside": idle / found["step_seconds"], "parts": found["parts"]}


def shaped(shape: str, device: str) -> LanguageModel:
    """Random weights in a published shape, with the tokenizer of the generated language."""
    module = build(shape, DTYPES["bfloat16"], device)
    return loading.wrap(module, make_tokenizer("causal"), "causal", f"{shape.upper()}'s shape, random weights")


def configured(model: str, device: str, dtype: str) -> RunConfig:
    """SST-2 by MeZO, 16 rows of 64 tokens a step, captured where that is possible."""
    engine = device.startswith("cuda") and engine_available()
    kind = "cuda" if device.startswith("cuda") else "cpu"
    return RunConfig(
        model=model,
        kind="causal",
        task="sst2",
        method="mezo",
        lr=1e-6,
        eps=1e-3,
        hyper={} if dtype == "float32" else {"rounding": "stochastic"},
        steps=1000,
        eval_every=1000,
        dtype=dtype,
        device=kind,
        engine=engine,
        row_length=64,
        best="copy",
        role="tune",
    )


def main(arguments: argparse.Namespace) -> int:
    """Measure both, print them, and write ``harness.jsonl``."""
    name, _, folder = arguments.model.rpartition("=")
    name = name or Path(folder).name
    env = environment(arguments.data, models={name: folder}, device=arguments.device)
    with Store(arguments.out / "harness.sqlite") as store:
        for dtype in ("float32", "bfloat16"):
            config = configured(name, arguments.device, dtype)
            session = Session(config, env)
            _note(store, {"what": "evaluation", **_facts(config, session)}, evaluation_cost(session, config))
            del session
        model = shaped(arguments.shape, env.device)
        config = configured(model.name, env.device, "bfloat16")
        session = Session(config, env, model)
        facts = {"what": "step", **_facts(config, session), "layers": model.module.config.num_hidden_layers}
        _note(store, facts, step_cost(session, config, arguments.steps))
        store.export_jsonl(arguments.out / "harness.jsonl", EXPERIMENT)
    return 0


def _facts(config: RunConfig, session: Session) -> dict[str, Any]:
    names = ("model", "task", "dtype", "device", "engine", "batch_size", "row_length", "method")
    return {**{name: getattr(config, name) for name in names}, "model": session.model.name or config.model}


def _note(store: Store, config: dict[str, Any], result: dict[str, Any]) -> None:
    store.put(Record.of(EXPERIMENT, config, {"status": "out_of_budget", **result}, origin.provenance()))
    print(config["what"], config["model"], config["dtype"], flush=True)
    for name, value in result.items():
        print(f"  {name:20s} {value}", flush=True)
