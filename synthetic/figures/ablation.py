"""The ablation: MeZO, momentum, biased gradient, anneal, clipped Hessian, on softmax regression of real images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch

from helene import noise
from synthetic.figures.digits import DIMENSION, digits, initial_curvature, race
from synthetic.figures.trials import EVERY, best_trial

VERSION = 1
TARGET, BUDGET, TUNING_BUDGET, BATCH, BETA1 = 1.0, 2000, 1000, 64, 0.9
TUNING_SEEDS, TEST_SEEDS = 5, 10
STAGES = {
    "mezo": "sgd",
    "momentum": "ema",
    "biased": "momentum",
    "annealed": "annealed",
    "helene": "helene",
}
# What the cells of this figure have in common, and those of the floor's.
COMMON: dict[str, Any] = {
    "target": TARGET,
    "budget": BUDGET,
    "tuning_budget": TUNING_BUDGET,
    "batch": BATCH,
    "tuning_seeds": TUNING_SEEDS,
    "test_seeds": TEST_SEEDS,
    "noise": noise.NOISE_VERSION,
}
Trial = dict[str, float]


def configs() -> list[dict[str, Any]]:
    """Every stage, tuned on its own and at MeZO's learning rate."""
    return [
        {
            "stage": stage,
            "protocol": protocol,
            **COMMON,
            "version": VERSION,
        }
        for protocol in ("tuned", "shared")
        for stage in STAGES
    ]


def cost(config: dict[str, Any]) -> float:
    """Expected core-seconds."""
    return 3.0 if config["protocol"] == "tuned" else 1.0


def run(config: dict[str, Any]) -> dict[str, Any]:
    """Tune (the stage, or MeZO where its learning rate is shared), then judge on other seeds."""
    method = STAGES[config["stage"]]
    if config["protocol"] == "shared":
        trials = stage_trials("mezo")
        tuned = tuning("sgd", trials, config)
        chosen = trials[tuned["best"]] | ({"floor": 1.0} if method == "helene" else {})
    else:
        trials = stage_trials(config["stage"])
        tuned = tuning(method, trials, config)
        chosen = trials[tuned["best"]]
    return {
        "status": "reached",
        "best_trial": chosen,
        "edge": tuned["edge"],
        "tuning": {"q": [t["q"] for t in trials], "steps": tuned["steps"]},
        **judge(method, chosen, config),
    }


def stage_trials(stage: str, floors: Sequence[float] = ()) -> list[Trial]:
    """16 settings: q times the natural step size of the stage, for HELENE 8 at each of two floors.

    The natural step is MeZO's, 1/(tr H + 2 λ_max), times 1 − β1 where momentum is not normalised, times the floor.
    """
    step = digits().natural_step
    if stage == "helene":
        floors = floors or (1.0, initial_curvature(range(1000, 1000 + TUNING_SEEDS), BATCH))
        count, first = 16 // len(floors), -6 if len(floors) == 1 else -3
        return [
            {"q": q, "lr": q * step * (1 - BETA1) * floor, "floor": floor}
            for floor in floors
            for q in _powers(first, count)
        ]
    gain = 1 - BETA1 if stage in ("biased", "annealed") else 1.0
    return [{"q": q, "lr": q * step * gain} for q in _powers(-10, 16)]


def _powers(first: int, count: int) -> list[float]:
    return [2.0 ** (k / 2) for k in range(first, first + count)]


def tuning(method: str, trials: Sequence[Trial], config: Mapping[str, Any]) -> dict[str, Any]:
    """The best trial on the tuning seeds, whether its step size is at the edge of its grid, and all counts."""
    numbers = tuple(config[name] for name in ("tuning_seeds", "tuning_budget", "budget", "batch", "target"))
    return _tuning(method, tuple(tuple(t.items()) for t in trials), *numbers)


@cache  # several cells share one tuning
def _tuning(
    method: str,
    settings: tuple[tuple[tuple[str, float], ...], ...],
    num_seeds: int,
    tuning_budget: int,
    budget: int,
    batch: int,
    target: float,
) -> dict[str, Any]:
    trials, seeds = [dict(t) for t in settings], range(1000, 1000 + num_seeds)
    raced = race(method, _settings(trials), seeds, budget=tuning_budget, batch=batch, horizon=budget)
    steps, final = hits(raced["loss"], target), raced["loss"][..., -1].tolist()
    best = best_trial(steps, final)
    same = [t["q"] for t in trials if t.get("floor") == trials[best].get("floor")]
    return {"best": best, "edge": trials[best]["q"] in (same[0], same[-1]), "steps": steps}


def judge(method: str, chosen: Trial, config: Mapping[str, Any]) -> dict[str, Any]:
    """Runs of one setting on the test seeds."""
    seeds = range(config["test_seeds"])
    raced = race(
        method, _settings([chosen]), seeds, budget=config["budget"], batch=config["batch"], horizon=config["budget"]
    )
    loss = raced["loss"][0]
    return {
        "steps": hits(loss, config["target"]),
        "loss": [[_short(x) for x in row] for row in loss.tolist()],
        "accuracy": [_short(x) for x in raced["accuracy"][0].tolist()],
        "above": [_short(x) for x in raced["above"][0].tolist()] if "above" in raced else None,
        "dimension": DIMENSION,
    }


def hits(loss: torch.Tensor, target: float) -> Any:
    """Steps to the first evaluation at or below the target, inf for none; nested lists over the leading axes."""
    below = loss <= target
    first = torch.where(below.any(-1), (below.int().argmax(-1) + 1.0) * EVERY, math.inf)
    return first.tolist()


def _settings(trials: Sequence[Trial]) -> list[Trial]:
    return [{name: value for name, value in t.items() if name != "q"} for t in trials]


def _short(value: float) -> float:
    return float(f"{value:.4g}")
