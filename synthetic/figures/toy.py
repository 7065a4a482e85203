"""The 2-D toy: Sophia's loss, five methods with exact gradients and five that see the loss alone.

The loss is that of the toy figure in Liu et al. (2023), which the paper's figure follows in its words ("simplified 2D
problem") and does not name: L = 8 (x − 1)² (1.3 x² + 2x + 1) + (y − 4)²/2. In x it has minima at 1 and −0.654 and a
maximum at 0, and negative curvature between −0.365 and 0.596; curvature at the minimum is 68.8 in x, 1 in y.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from helene.noise import NOISE_VERSION
from synthetic.figures.trials import at_edge, best_trial, combinations, powers
from synthetic.figures.updates import ManyRuns
from synthetic.simulation.directions import BatchedDirections

VERSION = 1
TARGET, EPS = 1e-2, 1e-3
BUDGET = {"exact": 400, "losses": 4000}
TUNING, TEST = 20, 40
STARTS = ("concave", "convex")
SHOWN = (0.3, 0.0)  # start of the paths that are drawn
_NEWTON = 1 / 68.8
SPACES: dict[str, dict[str, list[float]]] = {
    "exact-sgd": {"lr": powers(_NEWTON, 2**0.5, -17, 24)},
    "exact-adam": {"lr": powers(0.01, 2.0, -3, 12), "beta1": [0.9, 0.5]},
    "exact-newton": {"lr": powers(4.0, 2**0.5, -23, 24)},
    "exact-sophia": {"lr": powers(0.01, 2.0, 0, 8), "gamma": [0.01, 0.1, 1.0]},
    "exact-helene": {"lr": powers(0.1, 2.0, -5, 8), "floor": [1.0, 10.0, 100.0]},
    "exact-helene_agnb": {"lr": powers(0.1, 2.0, -5, 8), "floor": [1.0, 10.0, 100.0]},
    "losses-sgd": {"lr": powers(1 / (69.8 + 2 * 68.8), 2**0.5, -17, 24)},
    "losses-adam": {"lr": powers(0.01, 2.0, -4, 12), "beta1": [0.9, 0.5]},
    "losses-newton": {"lr": powers(1.0, 2.0, -20, 24)},
    "losses-sophia": {"lr": powers(0.01, 2.0, -3, 8), "gamma": [0.01, 0.1, 1.0]},
    "losses-helene": {"lr": powers(0.1, 2.0, -7, 8), "floor": [1.0, 10.0, 100.0]},
}
SETTINGS: dict[str, dict[str, Any]] = {"sophia": {"beta1": 0.96}, "newton": {"interval": 1}}


def loss(theta: Tensor) -> Tensor:
    """L of points (..., 2)."""
    x, y = theta.unbind(-1)
    return 8 * (x - 1) ** 2 * (1.3 * x**2 + 2 * x + 1) + (y - 4) ** 2 / 2


def gradient(theta: Tensor) -> Tensor:
    """∇L, shape (..., 2)."""
    x, y = theta.unbind(-1)
    return torch.stack([8 * x * (5.2 * x**2 - 1.8 * x - 3.4), y - 4], -1)


def curvature(theta: Tensor) -> Tensor:
    """The Hessian's diagonal, which is all of it, shape (..., 2)."""
    x, y = theta.unbind(-1)
    return torch.stack([8 * (15.6 * x**2 - 3.6 * x - 3.4), torch.ones_like(y)], -1)


def configs() -> list[dict[str, Any]]:
    """One cell per method."""
    return [
        {"cell": name, "space": space, "budget": BUDGET[name.split("-")[0]], "target": TARGET, "version": VERSION}
        | {"tuning_seeds": TUNING, "test_seeds": TEST, "noise": NOISE_VERSION}
        for name, space in SPACES.items()
    ]


def cost(config: dict[str, Any]) -> float:
    """Expected core-seconds."""
    return 1.2 * config["budget"] / 1000


def run(config: dict[str, Any]) -> dict[str, Any]:
    """Tune on one set of starts, judge on another, and record one path."""
    trials = combinations(config["space"])
    tuned = race(config["cell"], trials, starts(1000, config["tuning_seeds"]), 1000, config["budget"])
    best = best_trial(tuned["steps"], tuned["final"], reliable=True)
    test_starts = starts(0, config["test_seeds"])
    test = race(config["cell"], trials[best : best + 1], test_starts, 0, config["budget"])
    shown = torch.tensor([SHOWN], dtype=torch.float64)
    path = race(config["cell"], trials[best : best + 1], shown, 0, config["budget"], keep=True)["path"]
    return {
        "status": "reached" if sum(map(np.isfinite, test["steps"][0])) * 2 > len(test["steps"][0]) else "out_of_budget",
        "best_trial": trials[best],
        "edge": at_edge(config["space"], trials[best]),
        "tuning": {"steps": tuned["steps"], "status": tuned["letters"]},
        "test": {"steps": test["steps"][0], "status": test["letters"][0]},
        "concave": [bool(x < 0.596) for x in test_starts[:, 0].tolist()],
        "path": _thinned(path),
    }


def starts(first: int, count: int) -> Tensor:
    """Starting points, shape (count, 2), half where the curvature in x is negative, half where it is positive."""
    rng = np.random.default_rng([first, 3])
    x = np.where(np.arange(count) % 2 == 0, rng.uniform(0.05, 0.55, count), rng.uniform(0.65, 0.95, count))
    return torch.from_numpy(np.stack([x, rng.uniform(-1, 1, count)], -1))


def race(
    cell: str, trials: list[dict[str, float]], begin: Tensor, first_seed: int, budget: int, keep: bool = False
) -> dict[str, Any]:
    """Run all trials from all starts.

    Args:
        cell: "exact-" or "losses-" and the method.
        trials: Settings.
        begin: Starting points, shape (seeds, 2).
        first_seed: Of the directions; seed s has the run seed first_seed + s.
        budget: Most steps.
        keep: Whether to return the path of the first trial and seed.

    Returns:
        ``steps`` to the target by trial and seed, inf for a miss; ``letters``, a status each; ``final`` loss; ``path``.
    """
    kind, method = cell.split("-")
    settings: dict[str, Any] = {"horizon": float(budget), **SETTINGS.get(method, {})}
    for name in trials[0]:
        values = torch.tensor([t[name] for t in trials], dtype=torch.float64)[:, None, None]
        settings[name] = values if len(trials) > 1 else trials[0][name]
    runs = ManyRuns(method.removesuffix("_agnb"), begin.expand(len(trials), *begin.shape), settings)
    z = directions(first_seed, len(begin), budget) if kind == "losses" else None
    initial, steps = loss(runs.theta), torch.full(runs.theta.shape[:2], torch.inf, dtype=torch.float64)
    late, path = initial, [begin[0].tolist()]
    for t in range(1, budget + 1):
        if z is None:
            exact_h = curvature(runs.theta) if method in ("newton", "sophia", "helene") else None
            runs.step(gradient(runs.theta), exact_h)
        else:
            runs.step(spsa(runs.theta, z[:, t - 1]))
        value = loss(runs.theta)
        steps = torch.where((value <= TARGET * initial) & steps.isinf(), float(t), steps)
        if t == budget - budget // 10:
            late = value
        if keep:
            path.append(runs.theta[0, 0].tolist())
        elif bool((steps.isfinite() | ~(value < 1e6 * initial)).all()):
            break
    return {
        "steps": steps.tolist(),
        "letters": _letters(steps, value, late, initial),
        "final": value.tolist(),
        "path": path,
    }


def spsa(theta: Tensor, z: Tensor) -> Tensor:
    """The two-point estimate c z at theta (trials, seeds, 2) for directions z (seeds, 2)."""
    return z * ((loss(theta + EPS * z) - loss(theta - EPS * z)) / (2 * EPS))[..., None]


def directions(first_seed: int, seeds: int, steps: int) -> Tensor:
    """z of the optimizers, shape (seeds, steps, 2), bit for bit."""
    return BatchedDirections([2])(range(first_seed, first_seed + seeds), range(1, steps + 1)).double()


def _letters(steps: Tensor, value: Tensor, late: Tensor, initial: Tensor) -> list[str]:
    out = []
    for row in zip(steps.tolist(), value.tolist(), late.tolist(), initial.tolist(), strict=True):
        letters = ""
        for step, end, before, start in zip(*row, strict=True):
            if np.isfinite(step):
                letters += "r"
            elif not np.isfinite(end):
                letters += "n"
            elif end > 10 * start:
                letters += "d"
            else:
                letters += "s" if abs(end - before) < 0.01 * start else "o"
        out.append(letters)
    return out


def _thinned(path: list[list[float]]) -> list[list[float]]:
    """At most 200 points, each coordinate to five digits, cut where it leaves the picture for good."""
    every = max(1, len(path) // 200)
    inside = [p for p in path[:60] + path[60::every] if all(abs(x) < 50 for x in p)]
    return [[float(f"{x:.5g}") for x in p] for p in inside]
