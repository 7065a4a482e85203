r"""Step counts of the theorem's update beside the bounds, on a few hundred problems with fixed seeds. Numpy only.

``python -m theory.proofs.separable.step_counts`` rewrites ``step_counts.csv`` and ``.md``; tests recompute a third of
it. Every problem (:mod:`theory.proofs.problems`) satisfies the hypotheses by construction. Bounds and count share mu,
R, start and target.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np

from theory.losses.smooth import RidgeLoss, Smooth
from theory.proofs import bounds, csv_record, problems
from theory.updates.clipped_newton import count_steps, theorem_clip

RECORD = Path(__file__).parent / "step_counts.csv"
PAGE = RECORD.with_suffix(".md")
MOST_STEPS = 2000


@dataclass(frozen=True)
class Row:
    """One problem: what was counted and what the bounds say."""

    family: str
    seed: int
    num_layers: int
    largest_dimension: int
    relative_gap: float  # largest G_i0 / (mu_i R_i²); for coupled layers G0 / (kappa min mu_i R_i²)
    nu: float
    kappa: float
    steps: int
    stated: float  # the bound as first conjectured, rounded up where it must be
    sharper: float  # this folder's own
    sweeps: int | None = None  # coupled families: sweeps of the cyclic order with eta = 1/2
    sweeps_bound: float | None = None


def separable_row(family: str, seed: int) -> Row:
    """Counts one separable problem: a layer of the family, or two to five layers of mixed families."""
    rng = np.random.default_rng([seed, sorted([*problems.LAYERS, "several layers"]).index(family)])
    while True:
        if family == "several layers":
            makers = list(problems.LAYERS.values())
            layers = [makers[k](rng) for k in rng.integers(len(makers), size=int(rng.integers(2, 6)))]
        else:
            layers = [problems.LAYERS[family](rng)]
        gaps = [a.problem(a.start).gap for a in layers]
        target = 10.0 ** -rng.uniform(1, 4)
        starts = [
            bounds.LayerStart(a.dimension, a.mu, a.radius, gap, gap * target)
            for a, gap in zip(layers, gaps, strict=True)
        ]
        sharper = bounds.sharp_separable_bound(starts)
        if sharper <= MOST_STEPS:
            break
    shapes = [len(a.start) for a in layers]
    problem = problems.Independent([a.problem for a in layers], shapes)
    clips = [theorem_clip(a.radius, a.dimension) for a in layers]
    start = np.concatenate([a.start for a in layers])
    count = count_steps(problem, start, sum(gaps) * target, 4 * MOST_STEPS, shapes, clips)
    return Row(
        family,
        seed,
        len(layers),
        max(a.dimension for a in layers),
        max(s.relative_gap for s in starts),
        1.0,
        1.0,
        count.steps,
        bounds.separable_bound(starts),
        sharper,
    )


def coupled_row(seed: int) -> Row:
    r"""Counts one coupled quadratic: n layers of width w, H = N ⊗ A with N = (1 − c) I + c 11ᵀ.

    M = I ⊗ A, so ν = 1 + (n − 1) c and κ = 1 − c exactly, and the largest ‖θ_i − θ_i*‖ with gap ≤ G0 is
    √(2 G0 (N⁻¹)_ii / λ_min(A)). R is drawn.
    """
    rng = np.random.default_rng([seed, 77])
    n, w = int(rng.integers(2, 9)), int(rng.integers(1, 6))
    c = rng.uniform(0.05, 0.9)
    coupling = (1 - c) * np.eye(n) + c * np.ones((n, n))
    sigma = np.array([problems.log_uniform(rng, 0.1, 1.0) for _ in range(w)])
    basis = problems.orthogonal(rng, w)
    roots = np.kron(np.linalg.cholesky(coupling).T, np.sqrt(sigma)[:, None] * basis)
    loss = RidgeLoss(roots, [Smooth("quadratic") for _ in roots], 0.0, (w,) * n)
    start = rng.normal(size=n * w)
    gap = loss(start).gap
    target = gap * 10.0 ** -rng.uniform(1, 3)
    furthest = math.sqrt(2 * gap * float(np.linalg.inv(coupling)[0, 0]) / float(sigma.min()))
    radius = furthest * problems.log_uniform(rng, 0.3, 3.0)
    nu, kappa, r = 1 + (n - 1) * c, 1 - c, min(1.0, radius / furthest)
    clip = theorem_clip(radius, w)
    widths, clips = [w] * n, [clip] * n
    mus, radii = [float(sigma.min())] * n, [radius] * n
    budget = 100 * MOST_STEPS
    count = count_steps(loss, start, target, budget, widths, clips, 0.5 / nu)
    cyclic = count_steps(loss, start, target, budget, widths, clips, in_turn=True)
    return Row(
        "coupled quadratic",
        seed,
        n,
        w,
        gap / (kappa * min(mus) * radius**2),
        nu,
        kappa,
        count.steps,
        bounds.coupled_bound(nu, kappa, r, furthest / clip, gap, target),
        bounds.coupled_phase_bound(nu, kappa, widths, mus, radii, gap, target),
        cyclic.steps,
        bounds.cyclic_bound(n, nu, kappa, r, furthest / clip, gap, target),
    )


def measure(num_seeds: int = 50) -> list[Row]:
    """All rows, in a fixed order."""
    rows = [separable_row(family, seed) for family in [*problems.LAYERS, "several layers"] for seed in range(num_seeds)]
    return rows + [coupled_row(seed) for seed in range(num_seeds)]


def write(rows: Sequence[Row], path: Path = RECORD) -> None:
    """Writes the rows as CSV; floats with six digits, for the last ones depend on the linear algebra library."""
    with path.open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(field.name for field in fields(Row))
        for row in rows:
            out.writerow(f"{v:.6g}" if isinstance(v, float) else "" if v is None else v for v in asdict(row).values())


def read(path: Path = RECORD) -> list[dict[str, str]]:
    """The committed rows, as text."""
    return csv_record.read(path)


def ratios(rows: Sequence[Mapping[str, str]], family: str, bound: str) -> list[float]:
    """Bound over count for a family of the record; ``bound`` is ``stated`` or ``sharper``."""
    return [float(row[bound]) / int(row["steps"]) for row in rows if row["family"] == family]


def families(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """The record's families, in its order."""
    return list(dict.fromkeys(row["family"] for row in rows))


def summary(rows: Sequence[Mapping[str, str]]) -> str:
    """The page ``proofs/separable/step_counts.md``: bound over count by family, least and median."""
    lines = [
        "# Bound over count",
        "",
        f"{len(rows)} problems of `step_counts.csv`; made by `python -m theory.proofs.separable.step_counts`, drawn by "
        "`python -m theory.proofs.separable.draw_step_counts`. *Stated* is the bound as first conjectured (rounded up "
        "where it must be), "
        "*sharper* that of Theorem 2 of `separable_theorem.md` and `coupled_theorem.md`.",
        "",
        "| family | problems | median steps | stated / steps: least, median | sharper / steps: least, median |",
        "| --- | --- | --- | --- | --- |",
    ]
    for family in families(rows):
        steps = [int(row["steps"]) for row in rows if row["family"] == family]
        cells = [f"{len(steps)}", f"{np.median(steps):.0f}"]
        for bound in ("stated", "sharper"):
            found = ratios(rows, family, bound)
            cells.append(f"{min(found):.2f}, {np.median(found):.1f}")
        lines.append(f"| {family} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "![sharper bound over count](step_counts_sharper.svg)",
        "",
        "![stated bound over count](step_counts_stated.svg)",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    write(measure())
    PAGE.write_text(summary(read()), encoding="utf-8")
