"""How much faster the batched simulator is than one run at a time over the optimizers: the same cell, side by side."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from synthetic.design import seeds, spaces, trials
from synthetic.methods import METHODS
from synthetic.methods.scale import scale_of
from synthetic.problems import Problem, build
from synthetic.problems.starts import starts
from synthetic.simulation.directions import BatchedDirections
from synthetic.simulation.simulator import simulate


@dataclass(frozen=True)
class Speed:
    """Run-steps per second of both ways, in one thread.

    Attributes:
        batched: Of `simulate` over all tuning seeds and trials of the method's search.
        looped: Of the optimizer, one run at a time, a parameter per layer.
    """

    batched: float
    looped: float

    @property
    def ratio(self) -> float:
        """How many times faster."""
        return self.batched / self.looped


def compare(method: str = "helene", n: int = 8, width: int = 32, num_steps: int = 200, repeats: int = 3) -> Speed:
    """Time the tuning of one quadratic cell both ways; of the repeats the fastest counts.

    Args:
        method: "helene" or "mezo".
        n: Layers.
        width: Of each.
        num_steps: Steps of each run that is timed.
        repeats: Times that each way is timed, in turn.

    Raises:
        ValueError: If there is no optimizer to compare the method with.
    """
    if method not in ("helene", "mezo"):
        raise ValueError(f"method must be helene or mezo, got {method!r}; the others have no loop here")
    problem = build({"kind": "quadratic", "layers": [[n, width]], "spectrum": {"levels": [1.0, 2.0, 4.0, 8.0]}})
    tuning = seeds(n * width)["tuning"]
    x0 = starts(problem, "coordinate", 1.0, tuning)
    scale = scale_of(problem, x0[0], 1e-2)
    rule = METHODS[method]
    settings = [rule.settings(trial, scale, problem) for trial in trials(spaces()[method])]
    with _one_thread():
        batched = looped = float("inf")
        simulate(problem, rule, x0, tuning, settings, target=1e-9, budget=1)  # the first call compiles
        for _ in range(repeats):
            start = time.perf_counter()
            simulate(problem, rule, x0, tuning, settings, target=1e-9, budget=num_steps, trace=True)
            batched = min(batched, (time.perf_counter() - start) / (num_steps * len(tuning) * len(settings)))
            looped = min(looped, _loop(method, problem.to(torch.float32), x0[0].float(), settings[0], num_steps))
    return Speed(1.0 / batched, 1.0 / looped)


def share_of_floor(n: int = 8, width: int = 64, num_steps: int = 2000, rounds: int = 7) -> float:
    """The machine's floor for a batched MeZO step over its actual time, timed in turns; 1 would be perfect.

    The floor is what no implementation that goes step by step can leave out: d normals per seed, and for all seeds and
    trials one pass that reads x (the slope along z) and one that reads and writes it (the update), each by the fastest
    call of torch. The simulator turns its normals into the eigenbasis and looks at the loss after every step besides;
    it reads x once a block of steps and draws faster than torch does, so that its share may pass 1.

    Args:
        n: Layers.
        width: Of each.
        num_steps: Steps that are timed; a search of d = 256 takes some 2,400.
        rounds: Of the floor, then the simulator; the median of their ratios counts.
    """
    d = n * width
    problem = build({"kind": "quadratic", "layers": [[n, width]], "spectrum": {"levels": [1.0, 2.0, 4.0, 8.0]}})
    tuning, rule = seeds(d)["tuning"], METHODS["mezo"]
    x0 = starts(problem, "coordinate", 1.0, tuning)
    scale = scale_of(problem, x0[0], 1e-2)
    settings = [rule.settings(trial, scale, problem) for trial in trials(spaces()["mezo"])]
    with _one_thread():
        ratios = []
        for _ in range(rounds):
            floor = _floor(len(tuning), len(settings), d, num_steps)
            start = time.perf_counter()
            simulate(problem, rule, x0, tuning, settings, target=1e-9, budget=num_steps)
            ratios.append(floor / (time.perf_counter() - start))
    return statistics.median(ratios)


def directions_over_randn(d: int = 256, num_steps: int = 256, rounds: int = 41) -> float:
    """Seconds of the simulator's directions over those of as many of torch's normals, timed in turns; the median."""
    which, steps, draw = seeds(d)["tuning"], range(1, num_steps + 1), BatchedDirections([d])
    z, generator = torch.empty(len(which), num_steps, d), torch.Generator().manual_seed(0)
    with _one_thread():
        ratios = []
        for _ in range(rounds):
            start = time.perf_counter()
            z.normal_(generator=generator)
            middle = time.perf_counter()
            draw(which, steps, out=z)
            ratios.append((time.perf_counter() - middle) / (middle - start))
    return statistics.median(ratios)


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _floor(num_seeds: int, num_trials: int, d: int, num_steps: int) -> float:
    """Seconds of the floor; see `share_of_floor`."""
    x = torch.ones(num_seeds, num_trials, d)
    generator, chunk = torch.Generator().manual_seed(0), 16  # the normals of so many steps stay in the cache
    normals = torch.empty(chunk, num_seeds, 1, d)
    start = time.perf_counter()
    for _ in range(0, num_steps, chunk):
        normals.normal_(generator=generator)
        for z in normals.unbind(0):
            c = torch.bmm(z, x.mT)
            x.addcmul_(c.mT, z, value=-1e-6)
    return time.perf_counter() - start


def _loop(method: str, problem: Problem, x0: Tensor, setting: dict[str, Any], num_steps: int) -> float:
    """Seconds a step of one run, first step apart."""
    from helene.optimizers import Helene, MeZO

    theta = problem.minimizer.float() + x0
    params = [torch.nn.Parameter(theta[part].clone()) for part in problem.layers.slices()]
    if method == "mezo":
        optimizer: torch.optim.Optimizer = MeZO(params, lr=setting["lr"], seed=0)
    else:
        optimizer = Helene(
            params, lr=setting["lr"], anneal_horizon=setting["horizon"], batch_size=1, floor=setting["floor"], seed=0
        )

    def closure() -> torch.Tensor:
        return problem.loss(torch.cat([*params]))

    optimizer.step(closure)  # type: ignore[arg-type]
    start = time.perf_counter()
    for _ in range(num_steps):
        optimizer.step(closure)  # type: ignore[arg-type]
    return (time.perf_counter() - start) / num_steps
