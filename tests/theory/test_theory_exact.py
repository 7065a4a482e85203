"""Comparisons, units, searches and the families of layers, against independent computations."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import flint
import pytest
import sympy
from flint import arb, fmpq
from hypothesis import strategies as st

from theory.ledger.exact import Undecided, enclose, rational, related, same
from theory.ledger.search import counterexample
from theory.ledger.units import MixedUnits, units_of
from theory.losses import strategies
from theory.losses.functions import Curve, Ramps, clamp
from theory.losses.layers import Diagonal, clipped_decrease, run
from theory.losses.piecewise import Piecewise

HALF = Fraction(1, 2)


@pytest.mark.parametrize("value", [HALF, sympy.Rational(1, 2), fmpq(1, 2)])
def test_rationals_of_all_kinds_compare_exactly(value: object) -> None:
    assert rational(value) == HALF
    assert same(value, fmpq(1, 2))
    assert related(value, "<=", 1)
    assert not related(value, ">", sympy.Rational(1, 2))


def test_irrational_numbers_are_compared_by_enclosures_or_algebra() -> None:
    root = sympy.sqrt(2)
    assert related(root, "<", sympy.Rational(3, 2))
    assert same(root**2, 2)
    assert related(sympy.log(8), "==", 3 * sympy.log(2))
    assert related(sympy.exp(1), ">", sympy.Rational(271828, 100000))
    assert not related(sympy.pi, "<=", 3)


def test_what_cannot_be_told_is_not_told() -> None:
    with pytest.raises(Undecided):
        related(arb(0, 1), "<", 0)
    assert related(arb(0, 1), "<", 2)
    with pytest.raises(TypeError, match="float"):
        related(0.5, "<", 1)
    with pytest.raises(TypeError, match="no enclosure"):
        enclose(sympy.gamma(sympy.Rational(1, 3)))


def test_units_follow_the_expression() -> None:
    loss, length = sympy.symbols("loss length", positive=True)
    units = {loss: {"L": 1}, length: {"t": 1}}
    assert units_of(loss / length**2, units) == {"L": 1, "t": -2}
    assert units_of(sympy.sqrt(loss / (loss / length**2)), units) == {"t": 1}
    assert units_of(sympy.log(loss / (3 * loss)), units) == {}
    with pytest.raises(MixedUnits):
        units_of(loss + length, units)
    with pytest.raises(MixedUnits):
        units_of(sympy.log(loss), units)


def test_a_search_repeats_itself() -> None:
    sides = lambda n: (n, 900)  # noqa: E731
    first, second = (counterexample(sides, "<=", strategy=st.integers(0, 1000)) for _ in range(2))
    assert first == second
    assert first[0] is not None


def test_a_search_is_undecided_rather_than_passed() -> None:
    with pytest.raises(Undecided):
        counterexample(lambda n: (arb(n, 1), n), "<=", strategy=st.integers(0, 3))


@pytest.mark.parametrize("seed", range(20))
def test_ramps_agree_with_the_reference(seed: int) -> None:
    rng = Random(seed)
    knots = sorted({Fraction(rng.randint(-20, 20), 4) for _ in range(5)})
    shape = Piecewise(tuple(knots), tuple(Fraction(rng.randint(1, 9), 3) for _ in knots))
    ramps = Ramps(shape)
    for x in (Fraction(rng.randint(-60, 60), 7) for _ in range(8)):
        exact = ramps.at(fmpq(x.numerator, x.denominator))
        assert [rational(part) for part in exact] == [shape.value(x), shape.slope(x), shape.curvature(x)]
        ball = arb(fmpq(x.numerator, x.denominator), arb(2) ** -100)
        for part, enclosed in zip(exact, ramps.at(ball), strict=True):
            assert enclosed.contains(arb(part))
            assert enclosed.rad() < arb(2) ** -80


def test_an_enclosure_across_a_knot_holds_both_sides() -> None:
    ramps = Ramps(Piecewise((Fraction(0), Fraction(1)), (Fraction(1), Fraction(3))))
    wide = ramps.at(arb(1, HALF.numerator / 4))
    for x in (fmpq(4, 5), fmpq(1), fmpq(6, 5)):
        for part, enclosed in zip(ramps.at(x), wide, strict=True):
            assert enclosed.contains(arb(part))


@pytest.mark.parametrize("kind", ["log_cosh", "softplus", "pseudo_huber", "exponential", "cosh"])
def test_the_curves_radius_keeps_the_curvature_within_a_factor_two(kind: str) -> None:
    """Enclosures on a grid: the ratio is below 2 within the radius everywhere, and above 3/2 somewhere."""
    curve = Curve(kind, scale=fmpq(3), shift=fmpq(1, 4))
    worst = arb(0)
    for k in range(-40, 40):
        x = fmpq(k, 4)
        for step in (curve.radius, curve.radius / 2):
            ratio = curve.at(x + step)[2] / curve.at(x)[2]
            assert ratio < 2
            assert ratio > fmpq(1, 2)
            worst = worst.max(ratio.max(1 / ratio))
    assert worst > fmpq(3, 2)


@pytest.mark.parametrize("seed", range(10))
def test_ridge_pairs_satisfy_the_typeset_assumption(seed: int) -> None:
    """‖H'⁻¹H‖₂ ≤ 2 between random points, as 4I − MᵀM ⪰ 0."""
    rng = Random(seed)
    pair = strategies.ridge_pair(rng)
    points = [(fmpq(rng.randint(-9, 9), 3), fmpq(rng.randint(-9, 9), 3)) for _ in range(4)]
    hessians = [flint.arb_mat([[a, b], [b, c]]) for _, _, ((a, b), (_, c)) in (pair.at(point) for point in points)]
    for first in hessians:
        for second in hessians:
            m = first.solve(second)
            rest = flint.arb_mat([[4, 0], [0, 4]]) - m.transpose() * m
            assert rest[0, 0] > 0
            assert rest.det() > 0


@pytest.mark.parametrize("seed", range(10))
def test_ridges_satisfy_the_loewner_form(seed: int) -> None:
    """2H − H' ⪰ 0 between a point and one at the certified distance from it, by its leading minors."""
    rng = Random(seed)
    layer = strategies.ridge(rng)
    assert layer.radius is not None
    d = layer.dimension
    direction = [rng.choice((-1, 1)) for _ in range(d)]
    there = [x + layer.radius * s / 2 for x, s in zip(layer.position, direction, strict=True)]  # √d ≤ 2
    first, second = (layer.at(point)[2] for point in (layer.position, there))
    for one, other in ((first, second), (second, first)):
        for size in range(1, d + 1):
            minor = flint.arb_mat([[2 * one[i][j] - other[i][j] for j in range(size)] for i in range(size)])
            assert minor.det() > 0


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("make", [strategies.ridge_pair, strategies.ridge])
def test_a_ridge_s_spectrum_gives_back_its_forms(make, seed: int) -> None:
    pair = make(Random(seed))
    u2 = sum((u * u for u, _ in pair.spectrum), arb(0))
    form = sum((u * u / sigma for u, sigma in pair.spectrum), arb(0))
    newton = sum(((u / sigma) ** 2 for u, sigma in pair.spectrum), arb(0))
    for value, other in ((u2, pair.gradient2), (form, pair.form), (newton, pair.newton2)):
        assert abs(value - other) < arb(2) ** -80 * (1 + abs(other))


@pytest.mark.parametrize("seed", range(10))
def test_gradients_are_derivatives_of_the_gap(seed: int) -> None:
    """Central difference along the Newton direction of a smooth pair, error O(h²) with h = 2⁻⁴⁰."""
    pair = strategies.ridge_pair(Random(seed))
    h = fmpq(1, 2**40)
    x, y = pair.position
    for dx, dy, slope in zip((h, 0), (0, h), pair.at(pair.position)[1], strict=True):
        up, down = (pair.at((x + sign * dx, y + sign * dy))[0] for sign in (1, -1))
        assert abs((up - down) / (2 * h) - slope) < arb(2) ** -60


def test_meet_stops_just_where_the_condition_holds() -> None:
    need = strategies.small_gap(fmpq(1, 4))
    for seed in range(30):
        layer = strategies.meet(strategies.any_layer(Random(seed)), need)
        assert layer.radius is not None
        assert related(layer.gap, "<=", fmpq(1, 4) * layer.mu * layer.radius**2)


def test_outside_is_outside() -> None:
    for seed in range(30):
        layer = strategies.outside(strategies.any_layer(Random(seed)))
        assert layer.radius is not None
        assert related(layer.distance2, ">", layer.radius**2)


def test_clamp_and_clipped_decrease_by_hand() -> None:
    assert clamp(fmpq(-3), fmpq(2)) == -2
    assert clamp(fmpq(1, 3), fmpq(2)) == fmpq(1, 3)
    parabola = Ramps(Piecewise((Fraction(0),), (Fraction(1),)))
    layer = Diagonal((parabola, parabola), (fmpq(3), fmpq(1, 2)), fmpq(1))
    assert clipped_decrease(layer, fmpq(1)) == fmpq(3) + fmpq(1, 4)
    steps, there = run(Diagonal((parabola,), (fmpq(2),), fmpq(1)), fmpq(1, 32))
    assert (steps, there.position[0]) == (7, fmpq(1, 4))
    with pytest.raises(ValueError, match="still above"):
        run(Diagonal((parabola,), (fmpq(100),), fmpq(1)), fmpq(1, 32), limit=3)
    with pytest.raises(ValueError, match="certified"):
        layer.with_radius(fmpq(2))
