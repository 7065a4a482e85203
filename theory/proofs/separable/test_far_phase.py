"""Checks of ``proofs/separable/far_phase.md``; the letters are those of the page."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction as F
from functools import cached_property
from random import Random

import flint
import pytest
import sympy as sp
from scipy.integrate import quad

from theory.ledger.search import survey
from theory.losses.draws import seeded
from theory.losses.exact_layers import ExactLayer, exact_layer
from theory.losses.piecewise import halving
from theory.proofs.bounds import far_fall, far_phase, growth
from theory.proofs.separable.test_gap_lemma import growth_exactly

C = 1.81  # the page's c, rounded up


def fall_of_growth(x: F) -> F:
    """E(x), as in (a)."""
    n = math.floor(x)
    return 1 - F(1, 2**n) * (F(1, 2) + (1 - (x - n) / 2) ** 2)


def test_a_the_pieces_of_e():
    """Sympy: Γ on [n, n + 1] from value and slope at n gives E, E'; beside Γ's sums at four points of six pieces."""
    s, n = sp.symbols("s n", positive=True)
    half = sp.Rational(1, 2) ** n

    def gamma(shift: int) -> sp.Expr:
        """Γ(n − shift + s)."""
        m, width = n - shift, half * 2**shift
        return m - sp.Rational(3, 2) * (1 - width) + (1 - width) * s + width * s**2 / 4

    e = gamma(0) - gamma(1)
    assert sp.simplify(e - (1 - half * (sp.Rational(1, 2) + (1 - s / 2) ** 2))) == 0
    assert sp.simplify(sp.diff(e, s) - half * (1 - s / 2)) == 0
    assert fall_of_growth(F(1)) == F(1, 4)
    for k in range(1, 7):
        for part in (F(0), F(1, 3), F(3, 4), F(1)):
            assert fall_of_growth(k + part) == growth_exactly(k + part) - growth_exactly(k + part - 1)


@dataclass(frozen=True)
class Walk:
    """A step of length R towards θ*, R the largest share 1/x of D that is certified: so D/R = x is rational."""

    layer: ExactLayer
    x: F

    @cached_property
    def fall(self) -> F:
        """L(θ) − L(θ')."""
        return self.layer.gap - self.layer.loss([p * (1 - 1 / self.x) for p in self.layer.p])

    @property
    def unit(self) -> F:
        """μR²."""
        return self.layer.mu * self.layer.distance_squared / self.x**2

    def convex(self, factor: F = F(1)) -> bool:
        """L(θ) − L(θ') ≥ factor · G/x."""
        return self.fall >= factor * self.layer.gap / self.x

    def grows(self, factor: F = F(1)) -> bool:
        """L(θ) − L(θ') ≥ factor · μR² E(x)."""
        return self.fall >= factor * self.unit * fall_of_growth(min(self.x, F(200)))

    def least(self, factor: F = F(1)) -> bool:
        """L(θ) − L(θ') ≥ factor · μR² e(g), in float64; the margin is far above rounding."""
        g = float(self.layer.gap / self.unit)
        return g < 0.25 or float(self.fall / self.unit) >= float(factor) * far_fall(g) * (1 - 1e-9)


def walk(rng: Random) -> Walk:
    """Any exact layer; D/R is 1 where the minimizer is within the radius, else the next multiple of 1/64 above it."""
    layer = exact_layer(rng)
    ratio = layer.distance_squared / layer.radius**2
    x = max(F(1), F(math.isqrt(math.ceil(ratio * 4096)) + 1, 64))
    return Walk(layer, x * rng.choice((F(1), F(1), F(3, 2), F(4))))


def test_b_and_c_a_walk_of_length_r():
    """Exact search over fixed and turning eigenbases; E at 200 stands for E beyond, which is no larger there."""
    statements: dict[str, Callable[[Walk], bool]] = {
        "convexity": Walk.convex,
        "growth": Walk.grows,
        "Lemma 1": Walk.least,
    }
    twins: dict[str, Callable[[Walk], bool]] = {
        "convexity, 1 → 1.05": lambda w: w.convex(F(105, 100)),
        "growth, 1 → 1.05": lambda w: w.grows(F(105, 100)),
        "Lemma 1, 1 → 1.05": lambda w: w.least(F(105, 100)),
    }
    found = survey(seeded(walk), statements, twins, num_examples=200)
    assert not found.against
    assert set(found.fallen) == set(twins)


@pytest.mark.parametrize("n", [1.0, 4.0, 40.0], ids="N = {:.0f}".format)
def test_d_the_count(n):
    """Sequences that lose just e(g)/N a step: at most ⌈N A(g0)⌉ of them, and far out no fewer by more than N/50 + 2."""
    for start in (0.26, 0.5, 1.0, 3.0, 30.0):
        g, steps = start, 0
        while g > 0.25:
            g, steps = g - far_fall(g) / n, steps + 1
        bound = math.ceil(n * far_phase(start))
        assert steps <= bound
        assert start < 30 or steps >= bound - n / 50 - 2


def integral(g: float) -> float:
    """J(g) = x_g − 1 + ∫_1^{x_g} x dlnE, by parts; scipy's adaptive rule, good to 1e-8."""
    x = g / far_fall(g)
    inner, _ = quad(lambda t: -math.log(growth(t) - growth(t - 1)), 1, x, limit=400, points=range(2, min(int(x), 40)))
    return x - 1 + x * math.log(far_fall(g)) + math.log(4) + inner


def test_e_to_g_the_integral_is_below_a():
    """J ≤ A on a grid; J' = 1/e by a central difference (h = 1e-4, error below 1e-5); J − g rises to below c."""
    rest = []
    for g in (0.2501, 0.3, 0.5, 0.937, 1.0, 2.0, 5.0, 20.0):
        assert integral(g) <= far_phase(g) + 1e-7
        assert integral(g) <= 4 * (g - 0.25) + 1e-7
        if g > 0.26:
            assert (integral(g + 1e-4) - integral(g - 1e-4)) / 2e-4 == pytest.approx(1 / far_fall(g), rel=1e-4)
        rest.append(integral(g) - g)
    assert rest == sorted(rest)
    assert C - 0.02 < rest[-1] < C


def test_g_the_constant():
    """Arb: c = ln 4 − 1 + Σ_n ∫_0^1 −ln(1 − 2⁻ⁿ(½ + (1 − s/2)²)) ds, the tail below 2⁻⁵⁹ · 3 (−ln(1 − y) ≤ 2y)."""
    total = flint.arb(4).log() - 1
    for n in range(1, 60):
        width = flint.arb(2) ** -n

        def integrand(s: flint.acb, _: bool, width: flint.arb = width) -> flint.acb:
            return -(1 - width * (flint.acb(1) / 2 + (1 - s / 2) ** 2)).log()

        total += flint.acb.integral(integrand, 0, 1).real
    assert bool(total > 1.8007)
    assert bool(total + flint.arb(2) ** -59 * 3 < C)


def test_sharp_on_the_halving_function():
    """Exactly: at θ = k the walk takes E(k) up to 1/500, and k − g tends to 3/2."""
    f = halving(12, F(1, 1000))
    for k in (1, 2, 5, 12):
        taken = f.value(F(k)) - f.value(F(k - 1))
        assert fall_of_growth(F(k)) <= taken <= fall_of_growth(F(k)) + F(1, 500)
        assert abs(f.value(F(k)) - (k - F(3, 2) * (1 - F(1, 2**k)))) <= F(k, 500)
