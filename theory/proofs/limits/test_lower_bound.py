"""Checks of ``proofs/limits/lower_bound.md``; the letters are those of the page."""

from __future__ import annotations

import math
from fractions import Fraction as F
from itertools import pairwise

import numpy as np
import pytest
import sympy as sp

from theory.losses.cycles import clip_cycle, cycle_threshold, doublings, newton_cycle
from theory.losses.exact_layers import ExactLayer
from theory.losses.piecewise import halving, quadratic
from theory.proofs import bounds
from theory.proofs.bounds import LayerStart
from theory.proofs.problems import Diagonal
from theory.updates.clipped_newton import count_steps, theorem_clip

HALF = F(1, 2)
ETAS = [F(1), F(99, 100), F(2, 3), HALF, F(1, 4), F(1, 16), F(1, 100)]
CYCLES = pytest.mark.parametrize(
    ("eta", "root"),
    [pytest.param(eta, root, id=f"η = {eta}, d = {root**2}") for eta in ETAS for root in (1, 2, 3)],
)


def halving_run(depth: int, d: int, ramp: F, target: float) -> tuple[int, LayerStart]:
    """Section 2's layer: the count and what the bounds know of it."""
    problem = Diagonal([halving(depth, ramp).in_floats])
    count = count_steps(problem, np.array([float(depth)]), target, 10**6, [1], [theorem_clip(1.0, d)])
    return count.steps, LayerStart(d, 1.0, 1.0, count.first_gap, target)


@pytest.mark.parametrize("d", [1, 9, 100], ids="d = {}".format)
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


def test_2a_the_halving_layer_is_what_it_is_said_to_be():
    """Exactly: largest radius 1; φ ≥ x²/4 on [0, 1]; G0 ≤ (1 + δ/2) k; φ'' ≤ 1, below every other curvature."""
    for ramp in (F(1), F(1, 8)):
        f = halving(5, ramp)
        assert f.certifies(F(1))
        assert not f.certifies(F(1001, 1000))
        assert all(f.value(F(i, 16)) >= F(i, 16) ** 2 / 4 for i in range(17))
        assert all(f.value(F(k)) <= (1 + ramp / 2) * k for k in range(1, 6))
        assert max(f.curvatures) == f.curvature(F(0)) == 1


@pytest.mark.parametrize("eta", [F(1), HALF, F(1, 16)], ids="η = {}".format)
def test_3_a_small_clip_is_slow(eta):
    """K ≤ K_η in float64, d = 10⁴: the count beside √d/K_η (1 − 2√ε), which is no integer."""
    root, target, f = 100, 0.02, halving(1, F(1, 8))
    assert f.value(F(1)) <= F(3, 4)
    for share in (F(1), HALF):
        k = float(share * cycle_threshold(eta))
        run = count_steps(
            Diagonal([f.in_floats]), np.array([1.0]), target, 10**5, [1], [k / (float(eta) * root)], float(eta)
        )
        assert run.status == "reached"
        assert run.steps >= root / float(cycle_threshold(eta)) * (1 - 2 * math.sqrt(target))


def mirrored(layer: ExactLayer, rho: F, eta: F) -> bool:
    """Whether the step leads to −θ, so that the next one leads back."""
    return all(x - eta * c == -x for x, c in zip(layer.p, layer.clipped(rho), strict=True))


@CYCLES
def test_3d_above_the_threshold_every_coordinate_is_clipped(eta, root):
    """Exactly: hypotheses, simple eigenvalues, all clipped, θ → −θ; K just above, 2 and 40 times K_η."""
    for factor in (F(1001, 1000), F(2), F(40)):
        layer, rho = clip_cycle(factor * cycle_threshold(eta), root, eta)
        assert layer.certify()
        assert len(set(layer.sigma)) == root**2
        assert layer.clipped(rho) == (rho,) * root**2
        assert mirrored(layer, rho, eta)
        assert layer.mu == 1
        assert not mirrored(layer, rho / 2, eta)
    with pytest.raises(ValueError, match="must exceed"):
        clip_cycle(cycle_threshold(eta), root, eta)


@CYCLES
def test_3e_and_without_any_clipping_from_one_start(eta, root):
    """Exactly, for every ρ ≥ 2b R/(η√d); below that the step is clipped and leads elsewhere."""
    layer, k = newton_cycle(root, eta)
    assert layer.certify()
    assert len(set(layer.sigma)) == root**2
    for factor in (F(1), F(10**6)):
        assert mirrored(layer, factor * k / (eta * root), eta)
    assert not mirrored(layer, F(99, 100) * k / (eta * root), eta)


@pytest.mark.parametrize("eta", ETAS, ids="η = {}".format)
def test_3f_the_start_is_bounded_by_eta_alone(eta):
    """Exactly: G0 ≤ ½ (2^m + 1) b² in both cycles, whatever d; 32 for η = ½."""
    for root in (1, 2, 3):
        layer, twice = newton_cycle(root, eta)
        bound = HALF * (2 ** doublings(eta) + 1) * (twice / 2) ** 2
        assert layer.gap <= bound
        for k in (F(1001, 1000) * cycle_threshold(eta), twice):
            assert clip_cycle(k, root, eta)[0].gap <= bound
        assert eta != HALF or bound <= 32


def test_3c_the_slope_by_sums():
    """Sympy: ∫h over the intervals with their ramps, and the margin t − ½δ(2^m − 1) − (2/η − 1)ςa, for three m."""
    a, delta, eta, spread = sp.symbols("a delta eta varsigma", positive=True)
    for m in (2, 3, 6):
        area = 2**m * (a - m + 1) + sum(2**k for k in range(1, m))
        area -= sum(sp.Rational(2 ** (k - 1), 2) * delta for k in range(1, m + 1))  # half of each fall
        assert sp.expand(area - (2**m * (a - m + 2) - 2 - delta * (2**m - 1) / 2)) == 0
        a_eta = (2**m * (m - 2) + 2) / (2**m - 2 / eta)
        t = (2**m - 2 / eta) * (a - a_eta)
        margin = area - a - (2 / eta - 1) * (1 + spread) * a
        assert sp.simplify(margin - (t - delta * (2**m - 1) / 2 - (2 / eta - 1) * spread * a)) == 0
        spent = {delta: t / (2**m - 1), spread: t / (2 * (2 / eta - 1) * a)}
        assert sp.simplify(margin.subs(spent)) == 0


def test_3b_the_radius_is_used_up():
    """Exactly: h(x − 1) = 2 h(x) in places, so a radius of 1.001 is not certified."""
    layer, _ = clip_cycle(F(12), 1, HALF)
    assert layer.crossing is not None
    h = type(layer.crossing)(layer.crossing.knots, tuple(level + 1 for level in layer.crossing.curvatures))
    assert h.certifies(F(1))
    assert not h.certifies(F(1001, 1000))
    assert all(b <= a for a, b in pairwise([h.curvature(F(i, 8)) for i in range(60)]))


def test_3g_the_threshold_is_logarithmic():
    """K_½ = 5; K_η ≤ 4 log₂(8/η) for η at, below and above the powers where m changes. Exact but for log₂."""
    assert cycle_threshold(HALF) == 5
    for i in range(1, 30):
        for nudge in (F(1), F(99, 100), F(101, 100)):
            eta = min(F(1), nudge * F(2) / 2**i)
            m = doublings(eta)
            assert 2**m * eta >= 4 > 2 ** (m - 1) * eta or m == 2
            assert cycle_threshold(eta) <= max(2 * (m - F(3, 4)), F(4 * m - 6))
            assert float(cycle_threshold(eta)) <= 4 * math.log2(8 / eta)


def test_3h_a_small_step_size_is_slow_on_a_parabola():
    """Closed form: ln 4/(−ln(1 − η)) ≥ ln 4 (1/η − 1), and counts on ½θ² from √2 until G ≤ 1/16."""
    for eta in (0.5, 0.1, 0.01):
        problem = Diagonal([quadratic(1).in_floats])
        run = count_steps(problem, np.array([math.sqrt(2)]), 1 / 16, 10**5, [1], [math.inf], eta)
        assert run.steps >= math.log(4) / -math.log1p(-eta) - 1e-9 >= math.log(4) * (1 / eta - 1) - 1e-9  # roundings


def test_3_the_theorem_s_clip_converges_on_the_cycles():
    """The same layers with ρ = R/(2√d) descend: the cycle is the clip's doing."""
    layer, _ = clip_cycle(F(6), 2, HALF)
    assert layer.decrease(layer.clip) >= layer.s(layer.clip) / 4
