"""Checks of ``proofs/separable/gap_lemma.md``; the letters (a), (b), ... are those of the page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction as F
from functools import cached_property, partial

import pytest
import sympy as sp

from theory.ledger.exact import enclose
from theory.ledger.search import survey
from theory.losses.draws import seeded
from theory.losses.exact_layers import ExactLayer, exact_layer
from theory.losses.layers import Ridge, clipped_decrease, theorem_clip
from theory.losses.piecewise import Piecewise, even, halving
from theory.losses.strategies import ridge
from theory.proofs.bounds import growth

HALF, QUARTER = F(1, 2), F(1, 4)
positive = sp.Symbol("positive", positive=True)
u, sigma, rho, q, c, k, m = sp.symbols("u sigma rho q c k m", positive=True)
eta = sp.Symbol("eta", positive=True)


def at_most(lhs: F, factor: F, root_of: F, rhs: F) -> bool:
    """lhs ≤ factor · √root_of · rhs for nonnegative numbers, without a root."""
    return lhs**2 <= factor**2 * root_of * rhs**2


def gap_lemma(layer: ExactLayer, clip: F, constant: F = F(1)) -> bool:
    """G ≤ constant · max(1, D/ρ) S."""
    s = layer.s(clip)
    return layer.gap <= constant * s or at_most(layer.gap, constant / clip, layer.distance_squared, s)


def wide_gap_lemma(layer: ExactLayer, clip: F, *, with_radius: bool = True) -> bool:
    """G ≤ max(1, ‖p‖_∞/ρ, D/R) S."""
    s = layer.s(clip)
    near = layer.gap <= max(F(1), layer.largest / clip) * s
    return near or (with_radius and at_most(layer.gap, 1 / layer.radius, layer.distance_squared, s))


def is_near(layer: ExactLayer) -> bool:
    """Whether D ≤ R."""
    return layer.distance_squared <= layer.radius**2


def one_step(layer: ExactLayer, quarter: F = QUARTER, half: F = HALF) -> bool:
    """L − L⁺ ≥ min(1/4, ρ/(2D)) G."""
    fall = layer.decrease(layer.clip)
    return fall >= quarter * layer.gap or at_most(half * layer.clip * layer.gap, F(1), layer.distance_squared, fall)


def growth_exactly(x: F) -> F:
    """Γ by summation of its definition."""
    slope = value = F(0)
    n = 0
    while n < x:
        length, curvature = min(F(1), x - n), F(1, 2 ** (n + 1))
        value += slope * length + curvature * length**2 / 2
        slope += curvature * length
        n += 1
    return value


def grows(layer: ExactLayer, factor: F = F(1)) -> bool:
    """G ≥ factor · μ R² Γ(D/R), for one coordinate; beyond 200 R the value there is used, Γ being increasing."""
    x = min(abs(layer.p[0]) / layer.radius, F(200))
    return layer.gap >= factor * layer.mu * layer.radius**2 * growth_exactly(x)


STATEMENTS: dict[str, Callable[[ExactLayer], bool]] = {
    "Assumption 2 is certified": ExactLayer.certify,
    "gap lemma, largest clip": lambda a: gap_lemma(a, a.radius),
    "gap lemma, the theorem's clip": lambda a: gap_lemma(a, a.clip),
    "gap lemma, any clip": lambda a: all(wide_gap_lemma(a, c) for c in (a.clip, a.radius, 4 * a.radius, 4 * a.largest)),
    "descent": lambda a: a.decrease(a.clip) >= a.s(a.clip) / 4,
    "one step": one_step,
    "growth": lambda a: len(a.p) > 1 or grows(a),
}
TWINS: dict[str, Callable[[ExactLayer], bool]] = {
    "gap lemma where D ≤ ρ, 1 → 0.95": lambda a: not is_near(a) or gap_lemma(a, a.radius, F(95, 100)),
    "gap lemma where D > ρ, 1 → 0.95": lambda a: is_near(a) or gap_lemma(a, a.radius, F(95, 100)),
    "gap lemma without ρ ≤ R": lambda a: gap_lemma(a, 4 * a.largest),
    "gap lemma, the theorem's clip, 1 → 0.95": lambda a: gap_lemma(a, a.clip, F(95, 100)),
    "gap lemma, any clip, without D/R": lambda a: wide_gap_lemma(a, 4 * a.largest, with_radius=False),
    "descent, 0.25 → 0.26": lambda a: a.decrease(a.clip) >= F(26, 100) * a.s(a.clip),
    "descent, steps longer than R": lambda a: a.decrease(64 * a.radius) >= a.s(64 * a.radius) / 4,
    "one step, 1/4 → 1/2": lambda a: one_step(a, quarter=HALF),
    "one step, ρ/(2D) → 0.53 ρ/D": lambda a: one_step(a, half=F(53, 100)),
    "one step, 1/4 alone": lambda a: a.decrease(a.clip) >= a.gap / 4,
    "growth, Γ → 1.05 Γ": lambda a: len(a.p) > 1 or grows(a, F(105, 100)),
}


# Exact rationals: fixed and turning eigenbases, steep ramps, halvings far out.
SURVEY = partial(survey, seeded(exact_layer), STATEMENTS, TWINS, num_examples=500)


@pytest.mark.parametrize("name", STATEMENTS)
def test_no_counterexample(found, name):
    assert name not in found.against, found.against[name]


@pytest.mark.parametrize("name", TWINS)
def test_the_search_has_power(found, name):
    assert name in found.fallen, f"the false twin survived {found.looked} instances"


@dataclass(frozen=True)
class Enclosed:
    """What the lemmas compare, for one step from a smooth layer with the theorem's clip: Arb balls."""

    layer: Ridge

    @cached_property
    def clip(self):
        return theorem_clip(self.layer)

    @cached_property
    def s(self):
        return clipped_decrease(self.layer, self.clip)

    @cached_property
    def distance(self):
        return enclose(self.layer.distance2).sqrt()

    @cached_property
    def decrease(self):
        return self.layer.gap - self.layer.step(self.clip).gap

    def gap_lemma(self, factor: int) -> bool:
        gap = factor * self.layer.gap
        return bool(gap <= self.s) or bool(gap * self.clip <= self.distance * self.s)

    def descent(self, factor: int) -> bool:
        return bool(4 * self.decrease >= factor * self.s)

    def one_step(self, factor: int) -> bool:
        gap = factor * self.layer.gap
        return bool(4 * self.decrease >= gap) or bool(2 * self.distance * self.decrease >= self.clip * gap)


#: Statement, and the factor that makes it false.
ENCLOSED: dict[str, tuple[Callable[[Enclosed, int], bool], int]] = {
    "gap lemma": (Enclosed.gap_lemma, 2),
    "descent": (Enclosed.descent, 2),
    "one step": (Enclosed.one_step, 3),
}


def test_smooth_losses_with_turning_eigenbases():
    """Arb enclosures, log-cosh, softplus, pseudo-Huber, exponential, cosh plus ridge; an undecided ball fails."""
    decided = 0

    def at(layer: Ridge) -> Enclosed | None:
        nonlocal decided
        try:
            _ = layer.spectrum
        except ValueError:  # Arb cannot tell the eigenvalues apart
            return None
        decided += 1
        return Enclosed(layer)

    def on(holds: Callable[[Enclosed, int], bool], factor: int) -> Callable[[Enclosed | None], bool]:
        return lambda step: step is None or holds(step, factor)

    statements = {name: on(holds, 1) for name, (holds, _) in ENCLOSED.items()}
    twins = {name: on(holds, false) for name, (holds, false) in ENCLOSED.items()}
    result = survey(seeded(ridge).map(at), statements, twins, num_examples=80)
    assert not result.against
    assert set(result.fallen) == set(ENCLOSED)
    assert decided >= 70, "Arb separated the eigenvalues of too few instances"


def test_a_to_c_the_algebra_of_the_gap_lemma():
    """Sympy: ∫(1−t) dt, the completed square of (b)."""
    t = sp.Symbol("t")
    assert sp.integrate(1 - t, (t, 0, 1)) == HALF
    assert sp.simplify(u**2 / sigma - (u * q - sigma * q**2 / 4) - sigma / 4 * (q - 2 * u / sigma) ** 2) == 0


def test_e_the_algebra_of_descent():
    """Sympy: η u c − η² σ c² − (η − η²) u c = η² c (u − σ c), and both cases of c."""
    assert sp.expand(eta * u * c - eta**2 * sigma * c**2 - (eta - eta**2) * u * c - eta**2 * c * (u - sigma * c)) == 0


def test_f_the_four_cases_of_the_one_step_lemma():
    """Sympy, in units σρ² = 1 with k = |u|/(σρ) and m = min(D, R)/ρ: each case reduces to a square or a sign."""
    unclipped, clipped = k**2 / 4, k / 2 - sp.Rational(1, 4)
    inner, edge = k**2, m * k - m**2 / 4
    assert sp.expand(inner - edge - (k - m / 2) ** 2) == 0  # the edge value is never above the inner one
    case3 = clipped - inner / (2 * m)  # concave in k: its ends decide
    assert sp.diff(case3, k, 2).is_negative
    assert sp.simplify(case3.subs(k, 1) - (m - 2) / (4 * m)) == 0
    assert sp.simplify(case3.subs(k, m / 2) - (m - 2) / 8) == 0
    assert sp.simplify(clipped - edge / (2 * m) - (m - 2) / 8) == 0  # case 4, m ≥ 2
    case4 = clipped - edge / 4  # case 4, m < 2: rises with k and is a square at k = 1
    assert sp.simplify(sp.diff(case4, k) - (2 - m) / 4) == 0
    assert sp.expand(case4.subs(k, 1) - (2 - m) ** 2 / 16) == 0
    assert sp.expand(unclipped - inner / 4) == 0


def test_g_the_growth_function():
    """Γ(n) = n − 3/2 (1 − 2⁻ⁿ), Γ'(n) = 1 − 2⁻ⁿ by sympy's sums; Γ ≥ x − 3/2 and the halving family attains Γ."""
    n, j = sp.symbols("n j", integer=True, positive=True)
    slope = sp.summation(2**-j, (j, 1, n))
    assert sp.simplify(slope - (1 - 2**-n)) == 0
    steps = 1 - 2 ** (1 - j) + 2**-j / 2
    assert sp.simplify(sp.summation(steps, (j, 1, n)) - (n - sp.Rational(3, 2) * (1 - 2**-n))) == 0
    ramp = F(1, 1000)
    f = halving(6, ramp)
    for x in (F(1, 3), F(1), F(5, 2), F(6)):
        exact = growth_exactly(x)
        assert float(exact) == pytest.approx(growth(float(x)), rel=1e-14)  # a few roundings of numbers near 1
        assert exact >= x - F(3, 2)
        assert exact <= f.value(x) <= (1 + ramp) * (exact + ramp * x)


def test_witness_constant_1_is_approached():
    """φ'' drops from 1 to 1/2 just inside θ = 1: G/S → 1."""
    ramp = F(1, 100)
    f = even([0, 1 - ramp, 1], [HALF, HALF, 1])
    layer = ExactLayer((f,), (F(1),), F(1), 1)
    assert f.certifies(F(10**6))  # a factor 2 in all: every radius
    assert layer.s(F(1)) == (HALF + ramp / 4) ** 2 == F(40401, 160000)
    assert layer.gap == QUARTER + ramp**2 / 12 == F(30001, 120000)
    assert layer.gap / layer.s(F(1)) == F(120004, 121203) > F(99, 100)


def test_witness_the_clip_must_not_exceed_the_radius():
    """φ'' = 1 up to 1, 16 from 9/8 on, θ = 9/8, ρ = 2: G = 43/64 > S = 1089/4096."""
    f = even([0, 1, F(9, 8)], [1, 1, 16])
    layer = ExactLayer((f,), (F(9, 8),), F(1, 120), 1)
    assert layer.certify()
    assert not f.certifies(F(1, 119))
    assert (layer.gap, layer.s(F(2))) == (F(43, 64), F(1089, 4096))
    assert not gap_lemma(layer, F(2))


def test_witness_descent_constant_is_approached():
    """φ'' doubles just inside the point: L − L⁺ = (1/4 + O(δ)) S."""
    ramp = F(1, 1000)
    f = even([0, 1, 1 + ramp], [1, 1, HALF])
    layer = ExactLayer((f,), (1 + ramp,), F(16), 1)
    assert layer.certify()
    assert QUARTER * layer.s(layer.clip) <= layer.decrease(layer.clip) <= F(2505, 10000) * layer.s(layer.clip)


def test_worst_ratio_against_a_fine_grid():
    """The finite rule of ``Piecewise.worst_ratio`` beside brute force on a grid that contains its candidates."""
    f = Piecewise((F(-2), F(-1), F(0), F(1, 2), F(3)), (F(1), F(3), F(2), F(5), F(1, 2)))
    for radius in (F(1, 4), F(1), F(7, 4)):
        grid = [F(i, 4) for i in range(-20, 24)]
        brute = max(f.curvature(x) / f.curvature(y) for x in grid for y in grid if abs(x - y) <= radius)
        assert f.worst_ratio(radius) == brute
