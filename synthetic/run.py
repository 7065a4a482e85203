"""One cell: tune a method on tuning seeds, then judge it on others. The function that a sweep calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from synthetic.control_theory.predict import predict_cell
from synthetic.design import FIRST_ORDER, STATUS_OF, Config, trials
from synthetic.methods import METHODS
from synthetic.methods.base import Trial
from synthetic.methods.scale import predicted_steps, scale_of
from synthetic.problems import Problem, build
from synthetic.problems.starts import starts
from synthetic.simulation.gram import run_gram
from synthetic.simulation.outcome import OUT_OF_BUDGET, REACHED, RunOutcomes
from synthetic.simulation.simulator import simulate

# Core-seconds, fitted to one machine: a step of a search, and a step, row and feature of it by method.
_SECONDS_A_STEP = 1.0e-4
_SECONDS_AN_ELEMENT = {
    "mezo": 1.2e-9, "per_layer": 1.2e-9, "per_layer_in_turn": 1.2e-9, "heavy_ball": 1.7e-9
}  # fmt: skip
_FEATURES = {"digits_parity": 1797, "digits_16_parity": 1797, "breast_cancer": 569, "iris": 450, "wine": 534}
_LETTER = {status: letter for letter, status in STATUS_OF.items()}


def run(config: dict[str, Any]) -> dict[str, Any]:
    """Whatever a design asks for: a cell, or the prediction of a control."""
    if "control" in config:
        return predict_cell(config)
    return run_gram(config) if config["problem"]["kind"] == "gram" else run_cell(config)


def cost(config: Config) -> float:
    """Expected core-seconds of a cell, within a factor of two or so on a machine of today."""
    problem = config["problem"]
    groups, kind = problem["layers"], problem["kind"]
    d, width = sum(n * w for n, w in groups), max(w for _, w in groups)
    if "control" in config:
        size = width if config["control"] == "per_layer" else d
        few = kind == "quadratic" and len(groups) == 1 and "levels" in problem.get("spectrum", {})
        factor = 1.0 if few else {"coupled": 25.0, "regression": 5.0}.get(kind, 4.0)
        return 0.01 if kind == "gram" else factor * (0.05 + 6e-4 * size)
    method = config["method"]
    if kind == "gram":
        return (4e-4 if method == "heavy_ball" else 8e-5) * d
    if method in FIRST_ORDER:
        slow = method in ("theorem", "theorem_one_clip") and kind in ("regression", "coupled")
        return 0.08 * width if slow else 0.01
    steps = 50 + 6 * (width if method == "per_layer" else d)
    rows = 1.5 * 24 * len(config["seeds"]["tuning"]) + len(config["seeds"]["test"])
    each = _SECONDS_AN_ELEMENT.get(method, 5.5e-9)
    if kind == "regression":  # evaluating the features takes most of the time, whatever the method
        d, each = d + _FEATURES.get(problem["data"], 18000), 3e-9
    share = 0.25 if method == "mezo" and kind == "quadratic" and d >= 64 else 1.0  # blocks of steps save the rest
    return 0.02 + share * steps * (_SECONDS_A_STEP + each * rows * d)


def check(configs: Sequence[dict[str, Any]]) -> None:
    """Make the smallest problem and start of each kind that a design has, before anything runs.

    Raises:
        ValueError: If one of them cannot be made.
    """
    smallest: dict[str, dict[str, Any]] = {}
    for config in configs:
        problem = config["problem"]
        if problem["kind"] == "gram" or "start" not in config:
            continue
        kind = repr((sorted((k, repr(v)) for k, v in problem.items() if k != "layers"), config["start"]))
        if kind not in smallest or _size(config) < _size(smallest[kind]):
            smallest[kind] = config
    for config in smallest.values():
        try:
            starts(build(config["problem"]), config["start"]["kind"], config["start"]["size"], [0])
        except KeyError as err:
            raise ValueError(f"the preset lacks {err} in {config['problem']} or {config['start']}") from err


def _size(config: dict[str, Any]) -> int:
    return sum(count * width for count, width in config["problem"]["layers"])


def run_cell(config: dict[str, Any]) -> dict[str, Any]:
    """Tune and judge one method on one problem and start.

    Every trial runs on all tuning seeds; the one with the smallest median is run on the test seeds. A cell with one
    trial is judged without tuning.

    Args:
        config: ``problem`` (see `synthetic.problems.build`), ``start`` (kind and size), ``method``, ``space`` (see
            `synthetic.design.trials`), ``target``, ``seeds`` (tuning and test), ``cap`` (most steps, as a multiple of
            the predicted ones), ``race`` (see `simulate`), ``dtype``.

    Returns:
        ``status`` of the cell (that of most test seeds), ``problem`` (its constants), ``tuning`` (per trial its steps
        and one letter per seed), ``best`` (index of the trial), ``edge`` (whether its step size is the first or last
        of its grid), ``test`` (steps and letters per seed, budget), ``forwards_per_step``. A method that does not
        support the problem gives ``status`` "unsupported" and ``reason``.
    """
    problem, method = build(config["problem"]), METHODS[config["method"]]
    options = [_resolved(trial, problem, config) for trial in trials(config["space"])]
    facts = _facts(problem)
    if reason := method.supports(problem, options[0]):
        return {"status": "unsupported", "reason": reason, "problem": facts}
    start, target = config["start"], config["target"]
    x_ref = starts(problem, start["kind"], start["size"], [0])[0]
    scale = scale_of(problem, x_ref, target)
    _check_target(problem, x_ref, target, getattr(torch, config["dtype"]))
    settings = [method.settings(trial, scale, problem) for trial in options]
    predicted = predicted_steps(problem, method, options[0], scale, x_ref, target)
    budget = max(1, round(config["cap"] * predicted))

    def go(which: list[int], chosen: list[int], race: float) -> RunOutcomes:
        x0 = starts(problem, start["kind"], start["size"], which)
        return simulate(
            problem,
            method,
            x0,
            which,
            [settings[k] for k in chosen],
            target=target,
            budget=budget,
            dtype=getattr(torch, config["dtype"]),
            race=race,
        )

    result: dict[str, Any] = {"problem": facts, "predicted_steps": predicted, "forwards_per_step": None}
    result["forwards_per_step"] = method.forwards(problem.layers.n)
    best = 0
    if len(options) > 1:
        tuning = go(config["seeds"]["tuning"], list(range(len(options))), config["race"])
        medians = np.median(tuning.steps, axis=0)
        result["tuning"] = {
            "steps": [[_count(v) for v in column] for column in tuning.steps.T],
            "status": [_letters(column) for column in tuning.status.T],
            "stopped": int(tuning.stopped.max()),
        }
        if not np.isfinite(medians).any():
            seen = Counter(tuning.status.ravel().tolist())
            misses = len(config["seeds"]["test"])
            return {
                **result,
                "status": seen.most_common(1)[0][0],
                "best": None,
                "edge": True,
                "test": {"steps": [float("inf")] * misses, "status": "", "budget": budget},
            }
        best = int(medians.argmin())
        result["edge"] = _at_edge(options, best)
    judged = go(config["seeds"]["test"], [best], float("inf"))
    letters = _letters(judged.status[:, 0])
    reached = letters.count("r") > len(letters) / 2
    others = Counter(judged.status[:, 0].tolist())
    return {
        **result,
        "status": REACHED if reached else next((s for s, _ in others.most_common() if s != REACHED), OUT_OF_BUDGET),
        "best": best,
        "best_trial": options[best],
        "edge": result.get("edge", False),
        "test": {"steps": [_count(v) for v in judged.steps[:, 0]], "status": letters, "budget": budget},
    }


def _check_target(problem: Problem, x_ref: torch.Tensor, target: float, dtype: torch.dtype) -> None:
    """Losses are differences from the minimum: below the rounding of that difference nothing can be told."""
    terms = problem.gap_terms(problem.features(torch.zeros_like(x_ref)))
    floor = (8.0 * torch.finfo(dtype).eps * terms.abs().sum() / problem.gap(problem.features(x_ref))).item()
    if target < floor:
        raise ValueError(
            f"target {target:g} is below the noise floor of {dtype} on this problem, {floor:.1g}; take a larger one"
        )


def _resolved(trial: Trial, problem: Problem, config: dict[str, Any]) -> dict[str, Any]:
    """The trial with a radius that is named by the start turned into a number."""
    if trial.get("radius") != "distance":
        return dict(trial)
    x0 = starts(problem, config["start"]["kind"], config["start"]["size"], [0])[0]
    distances = [x0[part].norm().item() for part in problem.layers.slices()]
    return {**trial, "radius": max(distances)}


def _facts(problem: Problem) -> dict[str, Any]:
    layers, constants = problem.layers, problem.constants
    return {
        "n": layers.n,
        "d": layers.d,
        "max_d": layers.max_d,
        "trace_over_mu": constants.trace / constants.smallest,
        "mu": min(constants.mu),
        "radius": min(constants.radius),
        "condition": constants.largest / constants.smallest,
    }


def _at_edge(options: list[dict[str, Any]], best: int) -> bool:
    if "q" not in options[best]:
        return False
    steps = [trial["q"] for trial in options]
    return options[best]["q"] in (min(steps), max(steps))


def _count(value: float) -> float | int:
    return int(value) if np.isfinite(value) else float("inf")


def _letters(statuses: np.ndarray) -> str:
    return "".join(_LETTER[s] for s in statuses)
