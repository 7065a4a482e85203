r"""The optimizers of `helene` on the family of ``two_evaluations.md``, with what each of them reads of the loss.

``python -m theory.proofs.limits.two_evaluations`` rewrites ``two_evaluations.csv``; ``draw_two_evaluations`` draws it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

import helene
from helene.steps.zeroth import ZerothOrder
from theory.proofs import csv_record
from theory.updates.clipped_newton import Array

RECORD = Path(__file__).parent / "two_evaluations.csv"
DIMENSION, SEEDS = 32, 32


@dataclass(frozen=True)
class Family:
    """L = ½ Σ σ_j (θ_j − θ*_j)², layers of the given sizes; ``w`` is H^{1/2}θ*, so that ‖w‖² = 2 G_0."""

    sigma: Array
    w: Array
    sizes: tuple[int, ...]

    @property
    def minimizer(self) -> Array:
        """θ*."""
        return self.w / np.sqrt(self.sigma)

    def with_minimizer(self, w: Array) -> Family:
        """The same losses around another minimizer."""
        return Family(self.sigma, w, self.sizes)


def drawn(d: int, sizes: Sequence[int], seed: int) -> Family:
    """Eigenvalues log-uniform in [1, 8], w uniform on the sphere with 2 G_0 = 1."""
    rng = np.random.default_rng([seed, 20])
    w = rng.standard_normal(d)
    return Family(np.exp(rng.uniform(0.0, np.log(8.0), d)), w / np.linalg.norm(w), tuple(sizes))


@dataclass
class Run:
    """What a run did.

    Attributes:
        asked: Where losses were asked for, a list of points for each step.
        thetas: The iterates, after each step.
    """

    asked: list[list[Array]] = field(default_factory=list)
    thetas: list[Array] = field(default_factory=list)

    def differences(self, family: Family) -> Array:
        """The vectors v whose products v·w are all that differences of losses within a step tell, in rows."""
        rows = [point - points[0] for points in self.asked for point in points[1:]]
        return np.array(rows) * np.sqrt(family.sigma)

    def shares(self, family: Family) -> Array:
        """G/G_0 after each step."""
        off = np.array(self.thetas) * np.sqrt(family.sigma) - family.w
        return np.sum(off**2, axis=1) / (family.w @ family.w)


@dataclass(frozen=True)
class Method:
    """A class of `helene`, its arguments, the step sizes that are tried."""

    name: str
    lrs: tuple[float, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)


def run(method: Method, family: Family, steps: int, lr: float, seed: int) -> Run:
    """Runs one optimizer, a group a layer; it is given a closure and nothing else."""
    params = [torch.zeros(size, dtype=torch.float64, requires_grad=True) for size in family.sizes]
    minimizer, sigma = torch.from_numpy(family.minimizer), torch.from_numpy(family.sigma)
    found = Run()

    def closure() -> torch.Tensor:
        point = torch.cat(params)
        found.asked[-1].append(point.detach().clone().numpy())
        return 0.5 * (sigma * (point - minimizer) ** 2).sum()

    made = getattr(helene, method.name)
    options = {"eps": 1.0, "seed": seed} if issubclass(made, ZerothOrder) else {}
    optimizer = made([{"params": [p]} for p in params], lr, **options, **method.kwargs)
    for _ in range(steps):
        found.asked.append([])
        optimizer.step(closure)
        found.thetas.append(torch.cat(params).detach().clone().numpy())
    return found


#: Step sizes are in units of 1/tr H, of 1/√(d tr H) where a step does not grow with the gradient.
MEASURED = (
    Method("MeZO", (1.4, 1.0, 0.7)),
    Method("ZOMomentum", (0.2, 0.14, 0.1, 0.07)),
    Method("Helene", (0.2, 0.14, 0.1, 0.07), {"anneal_horizon": DIMENSION, "batch_size": 1}),
    Method("ZOAdam", (0.7, 0.5, 0.35)),
)
UNIT_STEPS = ("ZOAdam", "ZOSign", "ZOLion", "ZOSophia")


def step_size(method: Method, factor: float, family: Family) -> float:
    """The step size of a factor."""
    trace = float(family.sigma.sum())
    return factor / ((trace * len(family.w)) ** 0.5 if method.name in UNIT_STEPS else trace)


def lowest(method: Method, steps: int = DIMENSION) -> Array:
    """For each step the least, over the step sizes, of the mean of G/G_0."""
    d, means = DIMENSION, []
    for factor in method.lrs:
        families = [drawn(d, (4,) * (d // 4), seed) for seed in range(SEEDS)]
        runs = [run(method, f, steps, step_size(method, factor, f), seed) for seed, f in enumerate(families)]
        means.append(np.mean([one.shares(f) for one, f in zip(runs, families, strict=True)], axis=0))
    return np.min(means, axis=0)


def read() -> list[dict[str, str]]:
    """The committed record."""
    return csv_record.read(RECORD)


if __name__ == "__main__":
    columns = {method.name: lowest(method) for method in MEASURED}
    rows = [{"step": t + 1, **{name: f"{shares[t]:.4f}" for name, shares in columns.items()}} for t in range(DIMENSION)]
    csv_record.write(RECORD, rows)
