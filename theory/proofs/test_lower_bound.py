"""Checks of ``proofs/lower_bound.md``; the letters are those of the page."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction as F
from itertools import pairwise
from random import Random

import numpy as np
import pytest
import sympy as sp

from theory.ledger.search import survey
from theory.losses.cycles import clip_cycle, newton_cycle
from theory.losses.draws import seeded
from theory.losses.exact_layers import ExactLayer
from theory.losses.piecewise import Piecewise, even, halving, quadratic
from theory.losses.smooth import RidgeLoss, Smooth
from theory.proofs import bounds
from theory.proofs.bounds import LayerStart
from theory.proofs.problems import Diagonal
from theory.updates.clipped_newton import Evaluation, count_steps, theorem_clip

HALF = F(1, 2)


def halving_run(depth: int, d: int, ramp: F, target: float) -> tuple[int, LayerStart]:
    """Section 2's layer: the count and what the bounds know of it."""
    problem = Diagonal([halving(depth, ramp).in_floats])
    count = count_steps(problem, np.array([float(depth)]), target, 10**6, [1], [theorem_clip(1.0, d)])
    return count.steps, LayerStart(d, 1.0, 1.0, count.first_gap, target)


@pytest.mark.parametrize("d", [1, 9, 100])
def test_1_and_2_the_leading_constant_is_4(d):
    """T/(√d g) lies between the lower bound and Theorem 2's, which close in on 4 as g grows."""
    ramp, target = F(1, 64), 0.01
    width = []
    for depth in (10, 40, 160):
        steps, start = halving_run(depth, d, ramp, target)
        g, root = start.relative_gap, math.sqrt(d)
        assert steps >= 4 * root * (depth - 2 * math.sqrt(target))
        assert g <= (1 + float(ramp) / 2) * depth
        lower = 4 * (1 - 2 * math.sqrt(target) / depth) / (1 + float(ramp) / 2)
        upper = bounds.sharp_separable_bound([start]) / (root * g)
        assert lower <= steps / (root * g) <= upper
        width.append(upper - lower)
    assert all(later < earlier / 2 for earlier, later in pairwise(width))


def test_2_the_halving_layer_is_what_it_is_said_to_be():
    """Exactly: largest radius 1; φ ≥ x²/4 on [0, 1]; G0 ≤ (1 + δ/2) k."""
    for ramp in (F(1), F(1, 8)):
        f = halving(5, ramp)
        assert f.certifies(F(1))
        assert not f.certifies(F(1001, 1000))
        assert all(f.value(F(i, 16)) >= F(i, 16) ** 2 / 4 for i in range(17))
        assert all(f.value(F(k)) <= (1 + ramp / 2) * k for k in range(1, 6))


@pytest.mark.parametrize("root", [1, 2, 3])
@pytest.mark.parametrize("k", [F(101, 10), F(11), F(12), F(100)])
def test_3c_a_clip_above_10_cycles(k, root):
    """Exactly: hypotheses, simple eigenvalues, every coordinate clipped, θ → −θ, and the size of the start."""
    layer, rho = clip_cycle(k, root)
    assert layer.certify()
    assert len(set(layer.sigma)) == root**2
    step = layer.clipped(rho)
    assert step == (rho,) * root**2
    assert tuple(x - HALF * c for x, c in zip(layer.p, step, strict=True)) == tuple(-x for x in layer.p)
    assert layer.mu == 1
    assert k > 12 or layer.gap < 28
    with pytest.raises(ValueError, match="must exceed 10"):
        clip_cycle(F(10), root)


@pytest.mark.parametrize("root", [1, 2, 3])
def test_3d_and_without_any_clipping(root):
    """Exactly, for every ρ ≥ 10.7 R/√d."""
    layer = newton_cycle(root)
    assert layer.certify()
    for rho in (F(107, 10) / root, F(10**6)):
        new = tuple(x - HALF * c for x, c in zip(layer.p, layer.clipped(rho), strict=True))
        assert new == tuple(-x for x in layer.p)
    assert layer.gap < 19


def test_3b_to_d_the_algebra():
    """Sympy: ∫h with three ramps, the margin of (c), and b of (d)."""
    a, delta, k, sigma = sp.symbols("a delta K sigma", positive=True)
    area = 8 * (a - 2) + 4 + 2 - sum(sp.Rational(step, 2) * delta for step in (4, 2, 1))
    assert sp.expand(area - (8 * a - 10 - sp.Rational(7, 2) * delta)) == 0
    margin = (area - a - 3 * a * sigma).subs(a, k / 4)
    assert sp.expand(margin - (k - 10 - sp.Rational(7, 2) * delta - sp.Rational(3, 4) * k * (sigma - 1))) == 0
    worst = margin.subs({delta: (k - 10) / 7, sigma: 1 + 2 * (k - 10) / (3 * k)})
    assert sp.simplify(worst) == 0
    assert (area - a).subs({a: sp.Rational(13, 5), delta: sp.Rational(1, 20)}) / 3 == sp.Rational(107, 40)


def test_3_the_theorem_s_clip_converges_on_the_cycles():
    """The same layers with ρ = R/(2√d) descend: the cycle is the clip's doing."""
    layer, _ = clip_cycle(F(12), 2)
    assert layer.decrease(layer.clip) >= layer.s(layer.clip) / 4


@dataclass(frozen=True)
class BallStep:
    """A trust-region step in exact rationals: the multiplier is drawn, the radius follows from it."""

    functions: tuple[Piecewise, ...]
    p: tuple[F, ...]
    multiplier: F

    def _layer(self) -> ExactLayer:
        return ExactLayer(self.functions, self.p, F(1), 10)

    def q(self) -> tuple[F, ...]:
        """q° = (Σ + λ)⁻¹ u; on the boundary if λ > 0, the radius being its length."""
        layer = self._layer()
        return tuple(u / (s + self.multiplier) for u, s in zip(layer.u, layer.sigma, strict=True))

    def product(self) -> F:
        """uᵀq°."""
        return sum((u * q for u, q in zip(self._layer().u, self.q(), strict=True)), F(0))

    def decrease(self) -> F:
        """L − L⁺ with η = 1/2."""
        layer = self._layer()
        return layer.gap - layer.loss([x - q / 2 for x, q in zip(self.p, self.q(), strict=True)])

    def gap_bounded(self, factor: F = F(1)) -> bool:
        """G ≤ factor · max(1, D/R) uᵀq°; R = ‖q°‖ if λ > 0, else any R ≥ ‖q°‖, of which R ≥ D is the strictest."""
        layer, product = self._layer(), self.product()
        squared = sum((q * q for q in self.q()), F(0))
        near = layer.gap <= factor * product
        far = layer.gap**2 * squared <= factor**2 * layer.distance_squared * product**2
        return near or (self.multiplier > 0 and far)


def ball_step(rng: Random) -> BallStep:
    """Coordinates whose curvature varies by a factor of 2 in all, so every radius is certified."""
    functions, p = [], []
    for _ in range(rng.randint(1, 3)):
        scale = rng.choice((F(1, 16), F(1), F(16)))
        inside, outside = rng.choice(((1, 1), (1, 2), (2, 1)))
        functions.append(even([0, 1, F(65, 64)], [scale * inside, scale * inside, scale * outside]))
        p.append(rng.choice((F(1, 2), F(65, 64), F(4))))
    return BallStep(tuple(functions), tuple(p), rng.choice((F(0), F(1, 64), F(1), F(64))))


def test_4e_and_f_the_trust_region_step():
    """Exact search: descent by uᵀq°/4 and the gap lemma in the ball, with false twins."""
    statements: dict[str, Callable[[BallStep], bool]] = {
        "descent": lambda b: 4 * b.decrease() >= b.product(),
        "gap": BallStep.gap_bounded,
    }
    twins: dict[str, Callable[[BallStep], bool]] = {
        "descent, 0.25 → 0.26": lambda b: b.decrease() >= F(26, 100) * b.product(),
        "gap, 1 → 0.95": lambda b: b.gap_bounded(F(95, 100)),
    }
    found = survey(seeded(ball_step), statements, twins, num_examples=200)
    assert not found.against
    assert set(found.fallen) == set(twins)


def test_4f_the_algebra():
    """Sympy (scalars stand for a Gram matrix): the expansion around q°, and the completed square."""
    q, z, sigma, multiplier = sp.symbols("q z sigma lambda")
    u = (sigma + multiplier) * q
    value = u * (q + z) - sigma * (q + z) ** 2 / 4
    expansion = u * q - sigma * q**2 / 4 + sigma * q * z / 2 - sigma * z**2 / 4 + multiplier * q * z
    assert sp.expand(value - expansion) == 0
    assert sp.expand(sigma * q**2 / 4 + sigma * z**2 / 4 - sigma * q * z / 2 - sigma * (q - z) ** 2 / 4) == 0


def ball_direction(at: Evaluation, radius: float) -> np.ndarray:
    """argmax over ‖q‖ ≤ R of uᵀq − ½ qᵀΣq by bisection on the multiplier, to rounding."""
    sigma, basis = np.linalg.eigh(at.blocks[0])
    u = basis.T @ at.gradient
    low, high = 0.0, float(np.linalg.norm(u)) / radius
    if np.linalg.norm(u / sigma) <= radius:
        high = 0.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if np.linalg.norm(u / (sigma + middle)) > radius else (low, middle)
    return basis @ (u / (sigma + high))


def test_4_no_dimension_in_the_count():
    """Turning eigenbases in float64: below the bound, and the same quadratic from one direction in any dimension."""
    rng = np.random.default_rng(4)
    for _ in range(10):
        d = int(rng.integers(2, 7))
        kinds = [Smooth("log_cosh", 1.0, 1.0, rng.normal()), Smooth("cosh", 0.3, 2.0, rng.normal())]
        loss = RidgeLoss(rng.normal(size=(d + 1, d)), [kinds[k] for k in rng.integers(2, size=d + 1)], 0.1, (d,))
        radius, p = loss.radius(), rng.normal(size=d)
        mu, at = loss.mus()[0], loss(p)
        target, steps = at.gap * 1e-3, 0
        bound = 16 * at.gap / (mu * radius**2) + bounds.PER_LOG * bounds.log_plus(mu * radius**2 / (4 * target)) + 2
        while at.gap > target and steps < bound + 1:
            p = p - ball_direction(at, radius) / 2
            at, steps = loss(p), steps + 1
        assert steps <= bound
    counts = set()
    for d in (1, 4, 64):
        p, steps = np.eye(d)[0] * 5.0, 0
        while p @ p > 1e-4:
            p = p - ball_direction(Evaluation(0.0, p, [np.eye(d)]), 1.0) / 2
            steps += 1
        counts.add(steps)
    assert len(counts) == 1
    box = [
        count_steps(Diagonal([quadratic(1).in_floats]), np.array([5.0]), 5e-5, 10**4, [1], [theorem_clip(1.0, d)]).steps
        for d in (1, 4, 64)
    ]
    assert box[0] < box[1] < box[2]
