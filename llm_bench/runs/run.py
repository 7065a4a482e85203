"""A config to a result: the function that sweeps call."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from helene.lab.runs.store import config_key
from llm_bench.evaluation.evaluate import evaluate
from llm_bench.models.loading import num_parameters
from llm_bench.runs.config import UNTRAINED, RunConfig, from_dict
from llm_bench.runs.environment import Environment
from llm_bench.runs.meters import Stopwatch
from llm_bench.runs.natural_step import measure_slope
from llm_bench.runs.products import forwards_of, matmuls
from llm_bench.runs.ranks import check_ranks
from llm_bench.runs.session import Session, close_sessions, session
from llm_bench.runs.training.checkpoint import Folder
from llm_bench.runs.training.loop import Training
from llm_bench.runs.training.state import RunState
from llm_bench.runs.untrained import evaluated, unsupported
from llm_bench.tasks import get_task


def run(config: Mapping[str, Any], env: Environment) -> dict[str, Any]:
    """Run one config; returns the record's result.

    A run that is stopped goes on from its last save when it is called again with the same work folder, to the same
    result bit for bit: methods that see the loss only; with gradients, where the device's operations are deterministic.
    A trajectory that cannot be written is left out, and the message says so. Of several ranks each calls it, and the
    result is the first one's: its seconds wait for the others' steps, its bytes and joules are of its card alone.

    Result:
        ``status`` and ``message``; ``test`` (metric, loss, option_loss, auc, num_examples) where the role allows; for
        trained methods ``dev`` at the best step, ``best_step``, ``curve`` (see `RunState.look`), ``target`` (steps,
        forwards, seconds; inf is a miss), ``forwards``, ``tokens`` and ``padded_tokens`` of the steps, ``steps_made``
        (in which mode, for what reason), ``hyper`` (what the optimizer was told), ``training_seconds``,
        ``evaluation_seconds``, ``peak_bytes`` by phase, ``energy_joules``, ``optimizer`` (its own diagnostics),
        ``trajectory_bytes``, ``replayed`` (whether the replay gave dev's loss again); for all ``parameters``,
        ``preflight``, ``data``.
    """
    wanted = from_dict(config)
    try:
        with matmuls(wanted.products):
            return _run(wanted, env, config_key(config))
    except torch.cuda.OutOfMemoryError as err:
        message = _what_would_fit(wanted, env, err)
        close_sessions()
        return {"status": "out_of_memory", "message": message}


def _run(config: RunConfig, env: Environment, key: str) -> dict[str, Any]:
    check_ranks(config)
    reason = unsupported(config)
    if reason:
        raise ValueError(f"{config.method} on {config.task}: {reason}")
    opened = session(config, env)
    facts = {"preflight": opened.check(config), "data": _data(config, opened)}
    if config.method in UNTRAINED:
        return {**_untrained_result(config, opened), **facts}
    if config.role == "measure":
        return {**measure_slope(config, opened), **facts}
    folder = Folder(env.work, key)
    folder.check()
    training = Training(config, opened, folder)
    state = training.run()
    result = _training_result(config, training, state)
    try:
        result["trajectory_bytes"] = _keep_trajectory(training, env, key)
    except OSError as err:  # it is an extra: what the run found is worth more
        result["trajectory_bytes"] = None
        result["message"] += f"; its trajectory was not kept: {err}"
    if state.curve and config.role == "test":
        result["replayed"] = training.to_best()
        scored = forwards_of(evaluate, config.products, opened.model.device.type)
        result["test"] = scored(opened.model, training.task, opened.test_tokens(config)).summary()
    folder.remove()
    return {**result, **facts}


def _untrained_result(config: RunConfig, opened: Session) -> dict[str, Any]:
    watch, peaks = Stopwatch(opened.model.device), opened.fresh_peaks()
    with peaks.phase("evaluation"), watch.running():
        report, more = forwards_of(evaluated, config.products, opened.model.device.type)(config, opened)
    return {
        "status": "out_of_budget",  # the budget of an untrained row is no step at all
        "message": "no steps",
        "test": report.summary(),
        "method": more,
        "forwards": 0,
        "evaluation_seconds": watch.seconds,
        "peak_bytes": peaks.summary(),
        "parameters": num_parameters(opened.model.module),
    }


def _training_result(config: RunConfig, training: Training, state: RunState) -> dict[str, Any]:
    target = _target(config, state)
    status, message = state.ended or ("out_of_budget", f"{state.step} steps made")
    if target is not None and math.isfinite(target["steps"]):
        message = f"dev reached {config.target} at step {target['steps']}" + (
            f"; then {message}" if state.ended else ""
        )
        status = "reached"
    place = state.curve["step"].index(state.best_step) if state.curve else None
    names = ("dev_metric", "dev_loss", "dev_option_loss", "dev_auc")
    diagnostics: dict[str, Any] = getattr(training.optimizer, "diagnostics", dict)()
    diagnostics.pop("projected_gradient", None)  # the curve has c
    return {
        "status": status,
        "message": message,
        "steps": state.step,
        "best_step": state.best_step,
        "dev": None if place is None else {name.removeprefix("dev_"): state.curve[name][place] for name in names},
        "curve": state.curve,
        "target": target,
        "forwards": state.forwards,
        "tokens": state.tokens,
        "padded_tokens": state.padded_tokens,
        "steps_made": [{"mode": mode, "reason": reason, "steps": number} for mode, reason, number in state.made],
        "hyper": training.told(),
        "training_seconds": state.training_seconds,
        "evaluation_seconds": state.evaluation_seconds,
        "peak_bytes": training.peaks.summary(),
        "state_bytes": training.optimizer.state_bytes(),
        "energy_joules": training.energy.joules,
        "optimizer": diagnostics,
        "parameters": num_parameters(training.session.model.module),
    }


def _target(config: RunConfig, state: RunState) -> dict[str, Any] | None:
    """Steps, forwards and seconds until dev first reached the target; inf where it did not."""
    if config.target is None:
        return None
    for place, value in enumerate(state.curve.get("dev_metric", [])):
        if value >= config.target:
            return {
                "value": config.target,
                "steps": state.curve["step"][place],
                "forwards": state.curve["forwards"][place],
                "training_seconds": state.curve["training_seconds"][place],
            }
    return {"value": config.target, "steps": math.inf, "forwards": math.inf, "training_seconds": math.inf}


def _data(config: RunConfig, opened: Session) -> dict[str, Any]:
    split = opened.tokens(config).split
    sizes = {name: len(getattr(split, name)) for name in ("train", "dev", "test")}
    return {"source": split.source, "overlap_with_test": split.overlap, **sizes}


def _keep_trajectory(training: Training, env: Environment, key: str) -> int | None:
    """Write the trajectory beside the store, where a folder is given; returns its bytes."""
    if training.trajectory is None or env.work is None:
        return None
    path = Path(env.work) / "trajectories" / f"{key}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    training.trajectory.save(path)
    return path.stat().st_size


def _predicted(config: RunConfig, env: Environment) -> str:
    from llm_bench.runs.predicted_memory import predict_run

    try:
        needed = predict_run(config, env.source(config.model)).summary()
    except Exception:  # an architecture that the meta device cannot run; the row matters more
        return ""
    parts = ", ".join(f"{name} {size / 2**30:.1f}" for name, size in needed.items() if size >= 2**26)
    return f"; a step was predicted to take, in GiB, {parts}" if parts else ""


def _what_would_fit(config: RunConfig, env: Environment, err: Exception) -> str:
    device = torch.device(env.device)
    total = torch.cuda.mem_get_info(device)[1]
    peak = torch.cuda.max_memory_allocated(device)
    advice = "load it in bfloat16, or use LoRA or a prefix"
    if config.method not in UNTRAINED and config.batch_size > 1:
        rows = get_task(config.task, config.kind).max_length
        advice = f"a batch_size of {config.batch_size // 2} or rows shorter than {rows} tokens, or {advice}"
    first = str(err).splitlines()[0]
    if config.method not in UNTRAINED:
        first += _predicted(config, env)
    return f"{peak / 2**30:.1f} of {total / 2**30:.1f} GiB were taken when more was asked for ({first}); try {advice}"
