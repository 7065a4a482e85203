"""Checks of ``proofs/separable/small_sum.md``; the letters are those of the page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction as F
from functools import partial
from random import Random

import pytest
import sympy as sp

from theory.ledger.search import survey
from theory.losses.draws import seeded
from theory.losses.exact_layers import ExactLayer, fixed_layer
from theory.losses.piecewise import even


@dataclass(frozen=True)
class Small:
    """A layer and a clip ρ ≤ R with S ≤ ¼ μRρ."""

    layer: ExactLayer
    rho: F

    @property
    def s(self) -> F:
        """S."""
        return self.layer.s(self.rho)

    def near(self) -> bool:
        """(a): D ≤ R."""
        return self.layer.distance_squared <= self.layer.radius**2

    def bounded(self, constant: F, first: F = F(1)) -> bool:
        """G ≤ max(first · S, constant · S²/(μρ²))."""
        return self.layer.gap <= max(first * self.s, constant * self.s**2 / (self.layer.mu * self.rho**2))

    def each(self, factor: F = F(1)) -> bool:
        """(c): φ_j ≤ factor · u_j² / max(σ_j, μ) for one eigenbasis and |p_j| ≤ R."""
        layer = self.layer
        parts = zip(layer.functions, layer.p, layer.u, layer.sigma, strict=True)
        return all(f.value(x) <= factor * u * u / max(s, layer.mu) for f, x, u, s in parts)


def small(rng: Random) -> Small:
    """One eigenbasis, brought nearer to the minimizer until the sum is small. (L9's own search has bases that turn.)"""
    layer = fixed_layer(rng)
    rho = layer.radius * rng.choice((F(1), F(1, 2), F(1, 8), F(1, 64)))
    while 4 * layer.s(rho) > layer.mu * layer.radius * rho:
        layer = replace(layer, p=tuple(x * F(1, 2) for x in layer.p))
    return Small(layer, rho)


STATEMENTS: dict[str, Callable[[Small], bool]] = {
    "a": Small.near,
    "b": lambda c: c.bounded(F(4)),
    "c": Small.each,
    "d": lambda c: c.bounded(F(1)),
}
TWINS: dict[str, Callable[[Small], bool]] = {
    "c, 1 → 0.95": lambda c: c.each(F(95, 100)),
    "d, C = 1 → 0.95": lambda c: c.bounded(F(95, 100)),
    "d, S → 0.95 S": lambda c: c.bounded(F(1), F(95, 100)),
}


# Exact rationals, one eigenbasis: steep ramps, halvings, random walks, quadratics.
SURVEY = partial(survey, seeded(small), STATEMENTS, TWINS, num_examples=200)


@pytest.mark.parametrize("name", STATEMENTS)
def test_no_counterexample(found, name):
    assert name not in found.against, found.against[name]


@pytest.mark.parametrize("name", TWINS)
def test_the_search_has_power(found, name):
    assert name in found.fallen, f"the false twin survived {found.looked} instances"


def test_a_and_b_the_algebra():
    """Sympy: ¼ μ D² = (D/ρ) S at D = 4S/(μρ), where (D/ρ) S = 4S²/(μρ²); (D/R)(¼ μR²)(ρ/D) = ¼ μRρ."""
    s, mu, rho, far, radius = sp.symbols("S mu rho D R", positive=True)
    edge = 4 * s / (mu * rho)
    assert sp.simplify(mu * edge**2 / 4 - edge * s / rho) == 0
    assert sp.simplify(edge * s / rho - 4 * s**2 / (mu * rho**2)) == 0
    assert sp.simplify(far / radius * mu * radius**2 / 4 * rho / far - mu * radius * rho / 4) == 0


def test_d_the_algebra():
    """Sympy: X(a + b)² − (Xa² + b) = b (X(2a + b) − 1)."""
    x, a, b = sp.symbols("X a b", positive=True)
    assert sp.expand(x * (a + b) ** 2 - (x * a**2 + b) - b * (x * (2 * a + b) - 1)) == 0


def test_sharp():
    """Exactly: φ'' falls from 1 to ½ within δ = 1/1000 of 0, θ = 1, ρ = ½, R = 5/2: μρ² G/S² is above 0.99."""
    f = even([0, F(1, 1000)], [1, F(1, 2)])
    case = Small(ExactLayer((f,), (F(1),), F(5, 2), 1), F(1, 2))
    assert f.certifies(F(10**6))
    assert 4 * case.s <= case.layer.mu * case.layer.radius * case.rho
    assert case.layer.u[0] / case.layer.sigma[0] > case.rho
    assert F(99, 100) < case.layer.mu * case.rho**2 * case.layer.gap / case.s**2 < 1
    assert case.s < case.layer.gap  # so it is the second term that counts
