r"""Algorithm 1 with fixed D: exact second moments, exact rates, the bounds of ``algorithm_1.md``, a record of both.

``python -m theory.proofs.algorithm.algorithm_1`` rewrites ``algorithm_1.csv``; ``draw_algorithm_1`` draws it. Losses
are ½ Σ σ_j θ_j², ℓ_j = σ_j/D_j, u_j = σ_jθ_j.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from theory.proofs import csv_record
from theory.proofs.problems import log_uniform
from theory.updates.clipped_newton import Array

RECORD = Path(__file__).parent / "algorithm_1.csv"
NUM_PROBLEMS, MOST_STEPS, TARGET, SEEDS = 300, 2000, 0.01, 15
BETAS = (0.0, 0.5, 0.9, 11 / 12)
DENOMINATORS = ("constant", "floored curvature", "any")
GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0


def moment_matrix(ell: Array, s: float) -> Array:
    """M of (h): E u_j² ← Σ_k M_jk E u_k² in a step of size s."""
    y = s * ell
    return np.diag(1.0 - 2.0 * y + 2.0 * y**2) + np.outer(y**2, np.ones_like(y))


def margin(ell: Array, s: float) -> float:
    """1 − r(s, ℓ), r the largest eigenvalue of M: the root q of Σ y_j²/(2y_j − 2y_j² − q) = 1; 0 if r ≥ 1."""
    y = s * ell
    gaps = 2.0 * y - 2.0 * y**2
    if y.max() >= 1.0 or np.sum(y**2 / gaps) >= 1.0:
        return 0.0
    low, high = 0.0, float(gaps.min())
    for _ in range(48):
        middle = 0.5 * (low + high)
        rest = gaps - middle
        inside = rest.min() > 0.0 and np.sum(y**2 / rest) < 1.0
        low, high = (middle, high) if inside else (low, middle)
    return low


def best(ell: Array) -> tuple[float, float]:
    """(s, 1 − r) at the best step size, by golden section on its logarithm."""
    low = math.log(0.1 / float(ell.sum() + 2.0 * ell.max()))
    high = math.log(min(2.0 / float(ell.sum()), 1.0 / float(ell.max())))
    left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    at_left, at_right = margin(ell, math.exp(left)), margin(ell, math.exp(right))
    for _ in range(30):
        if at_left < at_right:
            low, left, at_left = left, right, at_right
            right = low + GOLDEN * (high - low)
            at_right = margin(ell, math.exp(right))
        else:
            high, right, at_right = right, left, at_left
            left = high - GOLDEN * (high - low)
            at_left = margin(ell, math.exp(left))
    s = math.exp(0.5 * (low + high))
    return s, margin(ell, s)


def bracket(ell: Array) -> tuple[float, float]:
    """Bounds of 1/(1 − r) at the best step size, page (j)."""
    least, total = float(ell.min()), float(ell.sum())
    return total / (4.0 * least), (total + 2.0 * float(ell.max())) / least


@dataclass(frozen=True)
class Descent:
    """Constants of the descent theorem for a diagonal quadratic; ``noise`` is σ² of the minibatch gradient."""

    sigma: Array
    denominator: Array
    beta1: float
    noise: float = 0.0

    @property
    def q_matrix(self) -> Array:
        """diag Q, Q = D⁻¹HD⁻¹."""
        return self.sigma / self.denominator**2

    @property
    def k(self) -> float:
        """K = D₊ tr Q + 2Λ."""
        return float(self.denominator.max() * self.q_matrix.sum() + 2.0 * (self.sigma / self.denominator).max())

    @property
    def least_alpha(self) -> float:
        """ᾱ, where the anneal ends."""
        return self.beta1 + (1.0 - self.beta1) / math.e

    @property
    def step(self) -> float:
        """The largest ŝ that the theorem allows."""
        return self.least_alpha / (12.0 * self.k)

    def bound(self, gap: float, steps: int) -> float:
        """On the average of E Φ."""
        floor = 2.0 * (self.q_matrix.sum() + 2.0 * self.q_matrix.max()) * self.noise
        return 4.0 * gap / (self.least_alpha * self.step * steps) + 3.0 * self.step * floor / self.least_alpha


def average_phi(problem: Descent, u: Array, steps: int) -> tuple[float, float]:
    r"""Average of E Φ(θ_t), Φ = Σ u_j²/D_j, and the last E L, by the exact recursion of second moments.

    u is ∇L at the start. The state is E u_j², E u_j m_j, E m_j²; the minibatch noise is spread evenly over coordinates.
    """
    d, beta, lr = len(u), problem.beta1, problem.step * (1.0 - problem.beta1)
    y = lr * problem.sigma / problem.denominator
    uu, um, mm = u**2, np.zeros(d), np.zeros(d)
    total = 0.0
    for t in range(1, steps + 1):
        total += float(np.sum(uu / problem.denominator))
        alpha = beta + (1.0 - beta) * math.exp(-t / steps)
        gg = uu.sum() + 2.0 * uu + problem.noise * (1.0 + 2.0 / d)
        mm = beta**2 * mm + 2.0 * beta * alpha * um + alpha**2 * gg
        um = beta * um + alpha * uu
        uu, um = uu - 2.0 * y * um + y**2 * mm, um - y * mm
    return total / steps, float(0.5 * np.sum(uu / problem.sigma))


@dataclass(frozen=True)
class Row:
    """One problem."""

    seed: int
    dimension: int
    denominator: str
    condition: float  # ℓ_max/ℓ_min
    efold: float  # exact steps per factor e of the moments, at the best step size
    lower: float
    upper: float
    simulated: float  # median steps of MeZO to the target on H = diag(ℓ), over ln(1/target)
    beta1: float
    noisy: bool
    descent: float  # average of E Φ over its bound


def problem_of(seed: int) -> tuple[Array, Array, str, np.random.Generator]:
    """σ, D, its kind and the generator that goes on."""
    rng = np.random.default_rng([seed, 31])
    d = round(log_uniform(rng, 1, 64))
    width = log_uniform(rng, 1.0, 100.0)
    sigma = np.array([log_uniform(rng, 1.0, width) for _ in range(d)])
    kind = DENOMINATORS[seed % len(DENOMINATORS)]
    if kind == "constant":
        denominator = np.full(d, log_uniform(rng, 0.1, 10.0))
    elif kind == "floored curvature":
        denominator = np.maximum(sigma, log_uniform(rng, 1.0, width))
    else:
        denominator = np.array([log_uniform(rng, 0.2, 5.0) for _ in range(d)])
    return sigma, denominator, kind, rng


def row(seed: int) -> Row:
    """Measures one problem."""
    sigma, denominator, kind, rng = problem_of(seed)
    ell = sigma / denominator
    s, q = best(ell)
    lower, upper = bracket(ell)
    descent = Descent(sigma, denominator, BETAS[seed % len(BETAS)], noise=float(seed % 2) * rng.uniform(0.1, 10.0))
    u = rng.standard_normal(len(sigma))
    steps = min(MOST_STEPS, max(1, round(descent.k * log_uniform(rng, 1.0, 100.0))))
    found, _ = average_phi(descent, u, steps)
    return Row(
        seed,
        len(sigma),
        kind,
        round(float(ell.max() / ell.min()), 3),
        round(-1.0 / math.log1p(-q), 4),
        round(lower, 4),
        round(upper, 4),
        round(simulated(ell, s, seed), 4),
        round(descent.beta1, 4),
        descent.noise > 0.0,
        round(found / descent.bound(0.5 * float(np.sum(u**2 / sigma)), steps), 4),
    )


def simulated(ell: Array, s: float, seed: int) -> float:
    """Median count of MeZO in the simulator on H = diag(ℓ), start of equal gradients, over ln(1/target)."""
    import torch

    from synthetic.methods.zeroth import MeZO
    from synthetic.problems.layers import Layers
    from synthetic.problems.separable import Separable
    from synthetic.simulation.simulator import simulate

    problem = Separable("quadratic", Layers((len(ell),)), ell, seed=None)
    start = torch.from_numpy(np.tile(1.0 / ell, (SEEDS, 1)))
    budget = math.ceil(20.0 * bracket(ell)[1])
    runs = range(SEEDS * seed, SEEDS * (seed + 1))
    out = simulate(problem, MeZO(), start, runs, [{"lr": s}], target=TARGET, budget=budget, dtype=torch.float64)
    return float(np.median(out.steps)) / math.log(1.0 / TARGET)


def read() -> list[dict[str, str]]:
    """The committed record."""
    return csv_record.read(RECORD)


if __name__ == "__main__":
    csv_record.write(RECORD, [asdict(row(seed)) for seed in range(NUM_PROBLEMS)])
