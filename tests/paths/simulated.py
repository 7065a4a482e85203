"""The batched simulator where it models a method: the same losses, step by step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import helene
from tests.paths.agree import Verdict
from tests.paths.cases import STEPS, Case

CURVED = {"lr": "lr", "beta1": "beta1", "beta2": "beta2", "interval": "interval", "gamma": "gamma"}
MODELLED: dict[str, tuple[str, dict[str, str]]] = {  # method -> its simulation, options -> settings
    "MeZO": ("mezo", {"lr": "lr"}),
    "ZOMomentum": ("heavy_ball", {"lr": "lr", "momentum": "beta1"}),
    "Helene": (
        "helene",
        {**CURVED, "floor": "floor", "batch_size": "batch_size", "denominator_eps": "denominator_eps"}
        | {"anneal_horizon": "horizon"},
    ),
    "ZOAdamW": ("zo_adam", {key: key for key in ("lr", "beta1", "beta2", "denominator_eps")}),
    "ZOSophia": ("zo_sophia", {**CURVED, "denominator_eps": "denominator_eps"}),
}
FIXED: dict[str, dict[str, Any]] = {"ZOSophia": {"batch_size": 1, "clip": 1.0}}
SHARED = "seed", "eps"
PROBLEM = {"kind": "log_cosh", "layers": [[3, 8], [1, 5]], "spectrum": {"levels": [1.0, 2.0, 4.0]}}


def check(case: Case) -> Verdict:
    """Losses of 12 steps, in float64.

    c = (L⁺ − L⁻) / 2 eps is off by u |L| / eps = 1e-16 · 10 / 0.05 = 2e-14, slopes are of order 1; methods that divide
    by h or √v multiply that by up to 1e3, twelve steps by up to 1e2: 1e-9.
    """
    name, settings = MODELLED.get(case.method, ("", {}))
    fixed = FIXED.get(case.method, {})
    mine = fixed | dict(case.options)
    per_layer = name == "mezo" and mine.get("direction_per_layer")
    unknown = {key for key, value in mine.items() if key not in (*settings, *SHARED) and value != fixed.get(key)}
    if not name or case.groups or case.events or unknown - ({"direction_per_layer"} if per_layer else set()):
        return Verdict("elsewhere", f"it is not simulated: {case.method} {sorted(unknown)}")
    if callable(mine["lr"]) or callable(mine.get("floor")):
        return Verdict("elsewhere", "schedules and rules are not simulated")
    problem, x0, run = _simulator(int(mine.get("seed", 0)) % 1000)
    expected = _loop(case, mine, problem, x0[0])
    made = getattr(helene, case.method)([nn.Parameter(torch.zeros(1))], **mine)
    given = {theirs: made.param_groups[0][ours] for ours, theirs in settings.items()}
    got = run("per_layer" if per_layer else name, given, int(mine.get("seed", 0)), float(mine["eps"]))
    off = (got[:STEPS] - expected).abs() / (expected.abs() + 1e-13)
    if not bool((off <= 1e-9).all()):
        first = int((off > 1e-9).nonzero()[0]) + 1
        return Verdict("disagreed", f"the loss differs from step {first} on, by {off.max():.1e} of it")
    return Verdict("agreed")


def _loop(case: Case, options: dict[str, Any], problem: Any, x0: Tensor) -> Tensor:
    theta = problem.minimizer + x0
    params = [nn.Parameter(theta[part].clone()) for part in problem.layers.slices()]
    optimizer = getattr(helene, case.method)([{"params": [p]} for p in params], **options)
    gaps = []
    for _ in range(STEPS):
        flat = torch.cat([p.detach() for p in params])
        gaps.append(problem.gap(problem.features(flat - problem.minimizer)).item())
        optimizer.step(lambda: problem.loss(torch.cat(list(params))))
    return torch.tensor(gaps, dtype=torch.float64)


def _simulator(start: int) -> tuple[Any, Tensor, Any]:
    """The problem, where runs start, and a function that gives a run's gaps."""
    from synthetic.methods import METHODS
    from synthetic.problems import build
    from synthetic.problems.starts import starts
    from synthetic.simulation.simulator import simulate

    problem = build(PROBLEM)
    x0 = starts(problem, "coordinate", 1.0, [start])

    def run(name: str, settings: dict[str, Any], seed: int, eps: float) -> Tensor:
        budget = {"target": 1e-9, "budget": STEPS, "dtype": torch.float64, "probe": eps, "trace": True}
        return torch.as_tensor(simulate(problem, METHODS[name], x0, [seed], [settings], **budget).gaps[:, 0, 0])

    return problem, x0, run
