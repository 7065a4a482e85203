"""Checks of ``proofs/coupled/sequential_updates.md``; the letters are those of the page."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction as F
from functools import partial

import pytest
import sympy as sp

from theory.ledger.search import survey
from theory.losses.cycles import three_layers_cycle
from theory.losses.draws import seeded
from theory.losses.exact_coupled import ExactCoupled, exact_coupled

HALF = F(1, 2)


def block_decreases(a: ExactCoupled) -> list[F]:
    """L − L⁺ for an update of each single layer from the same point."""
    return [a.loss(a.p) - a.loss(a.move(a.p, range(i, i + 1), HALF)) for i in range(a.n)]


def each_block(a: ExactCoupled, quarter: F = F(1, 4)) -> bool:
    """(i): L − L⁺ ≥ ¼ S_i."""
    return all(d >= quarter * s for d, s in zip(block_decreases(a), a.layer_sums(a.p), strict=True))


def bound(a: ExactCoupled) -> F:
    """B of the coupled theorem."""
    return max(a.inverse_r / a.kappa, a.distance_in_clips)


def greedy(a: ExactCoupled, factor: F = F(1)) -> bool:
    """(ii): the layer with the largest S_i lowers G by at least G / (4nB)."""
    sums = a.layer_sums(a.p)
    chosen = sums.index(max(sums))
    return factor * 4 * a.n * bound(a) * block_decreases(a)[chosen] >= a.loss(a.p)


def random_order(a: ExactCoupled, factor: F = F(1)) -> bool:
    """(ii): the mean over layers of the decrease is at least G / (4nB)."""
    return factor * 4 * bound(a) * sum(block_decreases(a)) >= a.loss(a.p)


def cyclic(a: ExactCoupled, factor: F = F(1)) -> bool:
    """(iii): G ≤ C Δ after one sweep."""
    c = 4 * max(4 * a.inverse_r / a.kappa, a.distance_in_clips)
    c += 16 * (a.n - 1) * a.nu * a.inverse_r / a.kappa
    points = a.sweep
    return a.loss(a.p) <= factor * c * (a.loss(a.p) - a.loss(points[-1]))


def small_moves(a: ExactCoupled, factor: F = F(2)) -> bool:
    """(c): ‖δ‖²_M ≤ 2Δ, M at the start of the sweep."""
    points = a.sweep
    delta = [[y - x for x, y in zip(old, new, strict=True)] for old, new in zip(a.p, points[-1], strict=True)]
    norm = sum(
        s * x * x for sigma, layer in zip(a.sigma(a.p), delta, strict=True) for s, x in zip(sigma, layer, strict=True)
    )
    return norm <= factor * (a.loss(a.p) - a.loss(points[-1]))


STATEMENTS: dict[str, Callable[[ExactCoupled], bool]] = {
    "each block": each_block,
    "greedy": greedy,
    "random": random_order,
    "cyclic": cyclic,
    "moves": small_moves,
}
TWINS: dict[str, Callable[[ExactCoupled], bool]] = {
    "each block, 0.25 → 0.26": lambda a: each_block(a, F(26, 100)),
    "greedy, a quarter of the bound": lambda a: greedy(a, F(1, 4)),
    "random, a quarter of the bound": lambda a: random_order(a, F(1, 4)),
    "cyclic, an eighth of C": lambda a: cyclic(a, F(1, 8)),
    "moves, 2 → 1/3": lambda a: small_moves(a, F(1, 3)),
}


# Exact rationals: coupled quadratics, couplings with steep ramps and halvings; ν and κ exact.
SURVEY = partial(survey, seeded(exact_coupled), STATEMENTS, TWINS, num_examples=300)


@pytest.mark.parametrize("name", STATEMENTS)
def test_no_counterexample(found, name):
    assert name not in found.against, found.against[name]


@pytest.mark.parametrize("name", TWINS)
def test_the_search_has_power(found, name):
    assert name in found.fallen, f"the false twin survived {found.looked} instances"


def test_one_half_in_turn_converges_where_at_once_it_cycles():
    """The three layers of the cycle, in turn, exactly: one sweep more than halves the gap."""
    a = three_layers_cycle()
    assert a.move(a.move(a.p, range(3), HALF), range(3), HALF) == a.p
    assert a.loss(a.sweep[-1]) < a.loss(a.p) / 2


def test_e_and_f_the_algebra():
    """Sympy: the maxima of |u|q − κσq²/16 and of bx − κx²/8, and the constant 16 (n − 1) ν/κ."""
    u, q, sigma, kappa, b, x, n, nu, delta = sp.symbols("u q sigma kappa b x n nu Delta", positive=True)
    first = u * q - kappa * sigma * q**2 / 16
    assert sp.simplify(first.subs(q, sp.solve(sp.diff(first, q), q)[0]) - 4 * u**2 / (kappa * sigma)) == 0
    second = b * x - kappa * x**2 / 8
    assert sp.simplify(second.subs(x, sp.solve(sp.diff(second, x), x)[0]) - 2 * b**2 / kappa) == 0
    factor = 2 * sp.sqrt(2 * (n - 1) * nu * delta)
    assert sp.simplify(2 * factor**2 / kappa - 16 * (n - 1) * nu * delta / kappa) == 0
