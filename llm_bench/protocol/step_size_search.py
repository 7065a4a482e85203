"""A step size for the user's own model and data within a budget of forwards."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from helene.lab.runs.store import Record, Store
from helene.lab.sweeps.executors import InlineExecutor
from helene.lab.sweeps.sweep import sweep
from llm_bench.runs import methods
from llm_bench.runs.config import RunConfig
from llm_bench.runs.environment import Environment, resolved
from llm_bench.runs.natural_step import SLOPES, denominator, needs_slope
from llm_bench.runs.run import run

EXPERIMENT = "llm/tune"
SPAN = (0.01, 0.1, 1.0, 10.0)  # of the method's natural step size, tried first
REFINED = (0.32, 3.2)  # of the best of these, tried then


@dataclass(frozen=True)
class Tuned:
    """What was found.

    Attributes:
        lr: The step size with the lowest dev loss.
        edge: Whether it is at the end of what was tried.
        forwards: Made in all.
        tried: (step size, dev loss or None, status), smallest first.
    """

    lr: float
    edge: bool
    forwards: int
    tried: tuple[tuple[float, float | None, str], ...]


def tune(base: RunConfig, natural: float | None, forwards: int, env: Environment, store: Store) -> Tuned:
    """Halve by halves: four decades on a third of the budget, then twice as long around the best.

    Args:
        base: The run; its step size, steps and role are set here.
        natural: The method's usual step size, the middle of what is tried; for HELENE in units of its denominator,
            which is measured first. None: the run's own is the middle.
        forwards: Budget of all runs together, that measurement included, a backward counted as two.
        env: Where things are.
        store: Where records go; what is there is not run again.

    Raises:
        ValueError: If the budget is too small for ten steps a run, every run failed, or the forwards of a step depend
            on the model (`llm_bench.runs.methods.forwards`).
    """
    at = methods.forwards(base.method, base.hyper)
    before = None if natural is None else _slope(base, env, store)
    center = base.lr if natural is None else natural
    assert center is not None
    if before is not None:
        center *= denominator(base.method, before.result["slope"], base.batch_size, base.hyper)
        forwards -= before.result["forwards"]
    short = _steps(forwards // 3 // len(SPAN), at)
    long = _steps((forwards - len(SPAN) * _forwards(short, at)) // (len(REFINED) + 1), at)
    if short < 10:
        need = 3 * len(SPAN) * _forwards(10, at)
        raise ValueError(f"forwards must be at least {need} (ten steps a run in the first round), got {forwards}")

    def runs(sizes: Sequence[float], steps: int) -> list[Record]:
        configs = []
        for lr in sizes:
            wanted: dict[str, Any] = {
                "lr": lr,
                "steps": steps,
                "eval_every": max(1, steps // 4),
                "role": "tune",
                "target": None,
            }
            configs.append(resolved(dataclasses.replace(base, **wanted), env).to_dict())
        return sweep(EXPERIMENT, configs, partial(run, env=env), store, executor=InlineExecutor())

    first = runs([float(f"{center * m:.3g}") for m in SPAN], short)
    middle = _best(first)
    second = runs([middle, *(float(f"{middle * m:.3g}") for m in REFINED)], long)
    best = _best(second)
    runs_made = (*([before] if before else []), *first, *second)
    made = sum(record.result.get("forwards", 0) for record in runs_made)
    latest: dict[float, Mapping[str, Any]] = {r.config["lr"]: r.result for r in (*first, *second)}
    tried = [(lr, (result.get("dev") or {}).get("loss"), result["status"]) for lr, result in sorted(latest.items())]
    return Tuned(best, best in (tried[0][0], tried[-1][0]), made, tuple(tried))


def _slope(base: RunConfig, env: Environment, store: Store) -> Record | None:
    """The measurement that the method's natural step size needs, if it needs one."""
    if not needs_slope(base.method, base.hyper):
        return None
    fixed: dict[str, Any] = {"method": "mezo", "role": "measure", "hyper": {}, "target": None, "engine": False}
    config = dataclasses.replace(base, **fixed, steps=SLOPES, eval_every=SLOPES)
    one = [resolved(config, env).to_dict()]
    call = partial(run, env=env)
    (record,) = sweep(EXPERIMENT, one, call, store, executor=InlineExecutor())
    if "slope" not in record.result:
        raise ValueError(f"c could not be measured: {record.result.get('message')}")
    return record


def _forwards(steps: int, at: Callable[[int], int]) -> int:
    return sum(at(step) for step in range(1, steps + 1))


def _steps(forwards: int, at: Callable[[int], int]) -> int:
    """Steps that so many forwards are enough for."""
    step = 0
    while (forwards := forwards - at(step + 1)) >= 0:
        step += 1
    return step


def _best(records: Sequence[Record]) -> float:
    """The step size of the lowest dev loss; that of a run that was lost before it learned is the model's as it was."""
    ended = [r for r in records if r.result.get("best_step") or r.result["status"] == "out_of_budget"]
    usable = [(r.result["dev"]["loss"], r.config["lr"]) for r in ended if r.result.get("dev")]
    if all(r.failed for r in records):
        raise ValueError(f"all {len(records)} runs failed: {records[0].result.get('message')}")
    if not usable:
        raise ValueError(
            f"no step size gave a dev loss of its own: {records[0].result.get('message')}; try smaller ones around "
            f"--set lr={records[0].config['lr'] / 100:g}, or check data and model"
        )
    return min(usable)[1]
