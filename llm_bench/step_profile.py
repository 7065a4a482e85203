"""A step's time on the host and the device, and the share that is neither forward nor update."""

from __future__ import annotations

import time
from typing import Any

import torch

from llm_bench.runs.checkpoint import Folder
from llm_bench.runs.config import RunConfig
from llm_bench.runs.environment import Environment
from llm_bench.runs.session import session
from llm_bench.runs.train import Training


def step_profile(config: RunConfig, env: Environment, steps: int = 20) -> dict[str, Any]:
    """Seconds of a step by part.

    Args:
        config: A run; nothing of it is recorded.
        env: Where things are.
        steps: Timed, after three to warm up.

    Returns:
        ``step_seconds``; ``forward_seconds``, of the forwards alone; ``collate_seconds``, of making the batch;
        ``share_outside``: the share of the step that making batches adds; on a GPU also what
        `llm_bench.profile.account` says.
    """
    opened = session(config, env)
    training = Training(config, opened, Folder(None, ""))
    module, loss = opened.model.module, opened.loss(config)
    rows = [training.stream.rows(t) for t in range(1, steps + 4)]
    batches = [opened.batch(config, r) for r in rows]

    def make(step: int) -> None:
        training.stepper.step(opened.batch(config, rows[step]), training._other_batch)

    def ready(step: int) -> None:
        training.stepper.step(batches[step], training._other_batch)

    for step in range(3):
        make(step)
    whole = _seconds(make, range(3, steps + 3), opened.model.device)
    without = _seconds(ready, range(3, steps + 3), opened.model.device)
    collate = _seconds(lambda step: opened.batch(config, rows[step]), range(3, steps + 3), opened.model.device)

    def forward(step: int) -> None:
        with torch.no_grad():
            loss(module, batches[step])

    forwards = training.optimizer.forwards_at(1)
    result = {
        "step_seconds": whole,
        "forward_seconds": forwards * _seconds(forward, range(3, steps + 3), opened.model.device),
        "collate_seconds": collate,
        "share_outside": max(0.0, whole - without) / whole,
    }
    if opened.model.device.type == "cuda":
        from llm_bench.profile import account, profile

        told = account(profile(lambda: ready(3), steps), steps)
        result |= {f"device: {name}": value for name, value in told["parts"].items()}
    return result


def _seconds(call: Any, steps: range, device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    for step in steps:
        call(step)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - start) / len(steps)
