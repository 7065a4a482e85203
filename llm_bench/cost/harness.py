"""What the harness costs beside the model: evaluation against pure forwards, and a step outside forward and update.

``python -m llm_bench.cost.harness --model DIR --data DIR --out DIR`` writes both as records: evaluation with the model
that is given, the step with random weights in the shape of OPT-1.3B (time does not ask what a model knows).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from helene.lab import provenance as origin
from helene.lab.store import Record, Store
from llm_bench.evaluation import evaluate as scoring
from llm_bench.evaluation.scoring import token_log_likelihoods
from llm_bench.models import loading
from llm_bench.models.loading import DTYPES, LanguageModel
from llm_bench.runs.config import RunConfig
from llm_bench.runs.environment import Environment, environment
from llm_bench.runs.session import Session
from llm_bench.runs.training.checkpoint import Folder
from llm_bench.runs.training.loop import Training
from llm_bench.runs.training.stepper import engine_available
from llm_bench.tasks import get_task

EXPERIMENT = "llm/harness"
OPT_1_3B = {"hidden_size": 2048, "ffn_dim": 8192, "num_hidden_layers": 24, "num_attention_heads": 32}
OPT_1_3B |= {"vocab_size": 50272, "max_position_embeddings": 2048, "word_embed_proj_dim": 2048}


def evaluation_cost(session: Session, config: RunConfig, repeats: int = 5) -> dict[str, Any]:
    """Seconds of evaluating the training rows, and of the forwards in it alone.

    Returns:
        ``first_seconds``, of the first evaluation, which makes the batches; ``evaluate_seconds``, of later ones, and
        ``forward_seconds``, of the same batches alone with the logits that are needed, medians of the repeats;
        ``ratio`` of the two; ``padding``, tokens computed over tokens; ``examples``, ``tokens``, ``batches``.
    """
    model, task = session.model, get_task(config.task, config.kind)
    examples = session.tokens(config).train
    device = model.device
    scoring.evaluate(model, task, examples[:64])  # kernels are loaded
    first = _seconds(lambda: scoring.evaluate(model, task, examples), device)
    made = scoring.prepared(model, examples)
    sums: list[Any] = []

    def forwards() -> None:
        sums.clear()
        with torch.inference_mode():
            sums.extend(token_log_likelihoods(model.module, batch) for batch in made.batches)

    def whole() -> None:
        scoring.evaluate(model, task, examples)

    forwards()
    pairs = [(_seconds(forwards, device), _seconds(whole, device)) for _ in range(repeats)]
    alone, together = (statistics.median(column) for column in zip(*pairs, strict=True))
    tokens, computed = made.tokens
    return {
        "first_seconds": first,
        "evaluate_seconds": together,
        "forward_seconds": alone,
        "ratio": together / alone,
        "padding": computed / tokens,
        "examples": len(examples),
        "tokens": tokens,
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
    rows = [training.stream.rows(t) for t in range(1, steps + 4)]
    batches = [session.batch(config, r) for r in rows]
    device = session.model.device
    turn = iter(range(1 << 30))

    def made() -> None:
        training.stepper.step(session.batch(config, rows[next(turn) % len(rows)]), training._other_batch)

    def ready() -> None:
        training.stepper.step(batches[next(turn) % len(rows)], training._other_batch)

    _repeat(made, 2 * len(rows))  # a shape's first step runs without a graph, its second is captured
    ready_seconds = _seconds(lambda: _repeat(ready, steps), device) / steps
    step_seconds = _seconds(lambda: _repeat(made, steps), device) / steps
    result: dict[str, Any] = {"step_seconds": step_seconds, "ready_seconds": ready_seconds}
    if device.type != "cuda":
        return {**result, "share_outside": max(0.0, 1.0 - ready_seconds / step_seconds)}
    from llm_bench.cost.timeline import account, profile

    told = account(profile(made, steps), steps)
    idle = sum(seconds for name, seconds in told["parts"].items() if name in ("gap", "staging"))
    return {**result, "share_outside": idle / told["step_seconds"], "parts": told["parts"]}


def opt_shaped(device: str, dtype: str = "bfloat16", shape: Mapping[str, int] = OPT_1_3B) -> LanguageModel:
    """Random weights in OPT's shape, with the tokenizer of the generated language."""
    import transformers as tf

    from llm_bench.tiny.tokenizer import make_tokenizer

    before = torch.get_default_dtype()
    torch.set_default_dtype(DTYPES[dtype])
    try:
        with torch.device(device):
            module = tf.OPTForCausalLM(tf.OPTConfig(**shape, pad_token_id=1, bos_token_id=2, eos_token_id=2))
    finally:
        torch.set_default_dtype(before)
    return loading.wrap(module, make_tokenizer("causal"), "causal", "OPT-1.3B's shape, random weights")


def configured(model: str, device: str, dtype: str, task: str = "sst2") -> RunConfig:
    """16 rows of 64 tokens, MeZO, captured where that is possible."""
    engine = device.startswith("cuda") and engine_available()
    kind = "cuda" if device.startswith("cuda") else "cpu"
    return RunConfig(
        model=model,
        kind="causal",
        task=task,
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


def main(argv: list[str] | None = None) -> int:
    """Measure both, print them, and write ``harness.jsonl``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, metavar="[NAME=]DIR", help="a causal model, for evaluation")
    parser.add_argument("--data", type=Path, required=True, help="the data folder")
    parser.add_argument("--out", type=Path, required=True, help="folder of the records")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--layers", type=int, default=OPT_1_3B["num_hidden_layers"], help="fewer for a trial")
    arguments = parser.parse_args(argv)
    name, _, folder = arguments.model.rpartition("=")
    name = name or Path(folder).name
    env = environment(arguments.data, models={name: folder}, device=arguments.device)
    arguments.out.mkdir(parents=True, exist_ok=True)
    with Store(arguments.out / "harness.sqlite") as store:
        for dtype in ("float32", "bfloat16"):
            config = configured(name, arguments.device, dtype)
            session = Session(config, env)
            _note(store, {"what": "evaluation", **_facts(config, session)}, evaluation_cost(session, config))
            del session
        _step_of_opt(store, env, arguments.steps, {**OPT_1_3B, "num_hidden_layers": arguments.layers})
        store.export_jsonl(arguments.out / "harness.jsonl", EXPERIMENT)
    return 0


def _step_of_opt(store: Store, env: Environment, steps: int, shape: Mapping[str, int]) -> None:
    model = opt_shaped(env.device, shape=shape)
    config = configured(model.name, env.device, "bfloat16")
    session = Session(config, env, model)
    facts = {"what": "step", **_facts(config, session), "layers": shape["num_hidden_layers"]}
    _note(store, facts, step_cost(session, config, steps))


def _facts(config: RunConfig, session: Session) -> dict[str, Any]:
    names = ("model", "task", "dtype", "device", "engine", "batch_size", "row_length", "method")
    return {**{name: getattr(config, name) for name in names}, "model": session.model.name or config.model}


def _note(store: Store, config: dict[str, Any], result: dict[str, Any]) -> None:
    store.put(Record.of(EXPERIMENT, config, {"status": "out_of_budget", **result}, origin.provenance()))
    print(config["what"], config["model"], config["dtype"], flush=True)
    for name, value in result.items():
        print(f"  {name:20s} {value}", flush=True)


def _repeat(call: Callable[[], None], times: int) -> None:
    for _ in range(times):
        call()


def _seconds(call: Callable[[], Any], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


if __name__ == "__main__":
    raise SystemExit(main())
