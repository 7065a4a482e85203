"""Hypothesis strategies for layers that satisfy the assumptions by construction, and for where to stand on them.

Steep ramps bring Assumption 2 to its limit: there the constants of the lemmas are attained, so a search over them has
the power to refute a sharper constant. A strategy draws a seed; a generator built from it makes the layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from random import Random
from typing import Any

from flint import fmpq
from hypothesis import strategies as st

from theory.ledger.exact import surely
from theory.losses.draws import seeded
from theory.losses.functions import Curve, Number, Ramps, as_fmpq
from theory.losses.layers import Diagonal, Layer, Ridge
from theory.losses.piecewise import Piecewise, halving, quadratic

LEVELS = (Fraction(1), Fraction(5, 4), Fraction(3, 2), Fraction(2))
WIDTHS = (Fraction(1, 1000), Fraction(1, 100), Fraction(1, 10), Fraction(1, 3))
SCALES = (Fraction(1, 8), Fraction(1), Fraction(7))
CURVES = ("log_cosh", "softplus", "pseudo_huber", "exponential", "cosh")
#: φ, where to stand, and the certified radius (None: every radius).
Stand = tuple[Any, fmpq, fmpq | None]


def nonzero(rng: Random, high: int, denominator: int = 12) -> Fraction:
    """A multiple of 1/denominator, not 0, of size at most high."""
    return Fraction(rng.randint(1, high * denominator) * rng.choice((1, -1)), denominator)


def three_levels(rng: Random, levels: tuple[Fraction, ...] = LEVELS, widths: tuple[Fraction, ...] = WIDTHS) -> Stand:
    """φ'' has one level at 0, one between, one at the point, within a factor 2: every radius is certified."""
    point, width, scale = nonzero(rng, 4), rng.choice(widths), rng.choice(SCALES)
    at_zero, between, at_point = (scale * rng.choice(levels) for _ in range(3))
    size, ramp = abs(point), abs(point) * width / 2
    knots = [Fraction(0), ramp, size - ramp, size]
    curvatures = [at_zero, between, between, at_point]
    if point < 0:
        knots, curvatures = [-knot for knot in reversed(knots)], curvatures[::-1]
    return Ramps(Piecewise(tuple(knots), tuple(curvatures))), as_fmpq(point), None


def many_ramps(rng: Random) -> Stand:
    """φ'' with random knots, all levels within a factor 2: every radius is certified."""
    knots = sorted({Fraction(rng.randint(-24, 24), 6) for _ in range(rng.randint(1, 6))})
    scale = rng.choice(SCALES)
    shape = Piecewise(tuple(knots), tuple(scale * rng.choice(LEVELS) for _ in knots))
    return Ramps(shape), as_fmpq(nonzero(rng, 4)), None


def staircase(rng: Random) -> Stand:
    """φ'' that may double or halve again and again; the radius is the largest of a few that is certified, exactly."""
    knots = [Fraction(k, 2) for k in range(-4, 5)]
    level, levels = rng.choice(SCALES), []
    for _ in knots:
        levels.append(level)
        level *= rng.choice((Fraction(1, 2), Fraction(2, 3), Fraction(1), Fraction(3, 2), Fraction(2)))
    shape = Piecewise(tuple(knots), tuple(levels))
    radius = next(Fraction(1, k) for k in (2, 3, 5, 8, 12, 20) if shape.certifies(Fraction(1, k)))
    return Ramps(shape), as_fmpq(nonzero(rng, 3)), as_fmpq(radius)


def slowest(rng: Random) -> Stand:
    """The slowest growth that Assumption 2 allows: φ'' halves once a radius."""
    radius = rng.choice((Fraction(1, 2), Fraction(1), Fraction(2)))
    shape = halving(rng.randint(1, 4), rng.choice((Fraction(1, 50), Fraction(1, 3))), radius)
    return Ramps(shape), as_fmpq(nonzero(rng, 3)), as_fmpq(radius)


def curve(rng: Random) -> Stand:
    """log-cosh, softplus, pseudo-Huber, exponential, cosh, tilted so that the minimum stands at 0."""
    kind = rng.choice(CURVES)
    scale = as_fmpq(rng.choice((Fraction(1, 2), Fraction(1), Fraction(3))))
    phi = Curve(kind, as_fmpq(rng.choice(SCALES)), scale, fmpq(rng.randint(-4, 4), 4))
    return phi, as_fmpq(nonzero(rng, 2)), phi.radius


def parabola(rng: Random) -> Stand:
    """Curvatures over five orders of magnitude; every radius is certified."""
    return Ramps(quadratic(Fraction(10) ** rng.randint(-2, 3))), as_fmpq(nonzero(rng, 4)), None


EXACT = (three_levels, many_ramps, parabola, staircase, slowest)
ENCLOSED = (*EXACT, curve, curve)


def diagonal(rng: Random, kinds: tuple[Callable[[Random], Stand], ...] = ENCLOSED) -> Diagonal:
    """A sum of the above in one to four dimensions."""
    chosen = [rng.choice(kinds)(rng) for _ in range(rng.randint(1, 4))]
    radii = [radius for _, _, radius in chosen if radius is not None]
    return Diagonal(
        functions=tuple(phi for phi, _, _ in chosen),
        position=tuple(point for _, point, _ in chosen),
        radius=min(radii) if radii else None,
    )


def extreme(rng: Random) -> Diagonal:
    """One coordinate, φ'' at either end of the allowed factor 2 at 0, between and at the point, very steep ramps."""
    phi, point, _ = three_levels(rng, levels=(Fraction(1), Fraction(2)), widths=WIDTHS[:2])
    return Diagonal((phi,), (point,))


def ridge_pair(rng: Random) -> Ridge:
    """Two coordinates coupled by one to three ridge functions with 0 < φ'' ≤ 1; every radius is certified.

    The typeset form holds at every distance: ‖H'⁻¹H‖₂ ≤ 1 + ‖H'⁻¹‖₂ ‖H − H'‖₂ ≤ 1 + Σ_k |Δφ_k''| ‖a_k‖² / ridge ≤ 2.
    The directions are positive, so H_12 > 0. The scales keep φ'' above 2⁻⁸⁰, well above the working precision, so that
    the eigenvectors are enclosed.
    """
    count = rng.randint(1, 3)
    kinds = ("log_cosh", "softplus", "pseudo_huber")
    functions = tuple(
        Curve(rng.choice(kinds), fmpq(1), rng.choice((fmpq(1), fmpq(3))), fmpq(rng.randint(-4, 4), 4))
        for _ in range(count)
    )
    directions = tuple((fmpq(rng.randint(1, 4)), fmpq(rng.randint(1, 4))) for _ in range(count))
    ridge = sum((a * a + b * b for a, b in directions), fmpq(0))
    return Ridge(ridge, directions, functions, (as_fmpq(nonzero(rng, 3)), as_fmpq(nonzero(rng, 3))))


def ridge(rng: Random) -> Ridge:
    """Two or three coordinates, as many ridge functions of any kind or one more, in any directions.

    Loewner form: |a_k·(p − p')| ≤ ‖a_k‖ R keeps every φ_k'', and so H, within a factor 2 for R = min_k of the radius of
    φ_k over ‖a_k‖.
    """
    d = rng.randint(2, 3)
    scales = (fmpq(1, 4), fmpq(1), fmpq(4))
    functions, directions = [], []
    for _ in range(rng.randint(d, d + 1)):
        functions.append(Curve(rng.choice(CURVES), rng.choice(scales), rng.choice(scales), fmpq(rng.randint(-6, 6), 3)))
        directions.append((*(fmpq(rng.randint(-6, 6), 3) for _ in range(d - 1)), as_fmpq(nonzero(rng, 2, 3))))
    lengths = (root_above(sum((x * x for x in a), fmpq(0))) for a in directions)
    radius = min(phi.radius / length for phi, length in zip(functions, lengths, strict=True))
    position = tuple(as_fmpq(nonzero(rng, 4, 3)) for _ in range(d))
    return Ridge(rng.choice((fmpq(1, 100), fmpq(1, 2))), tuple(directions), tuple(functions), position, radius)


def any_layer(rng: Random) -> Layer:
    """A layer of any family."""
    family = rng.choice((extreme, diagonal, lambda rng: diagonal(rng, EXACT), ridge_pair))
    return family(rng)


#: What a condition of a lemma needs: the least R² that meets it, at a layer.
Need = Callable[[Layer], Number]


def meet(layer: Layer, need: Need) -> Layer:
    """The layer, brought to where a condition holds: with every radius allowed, just holds.

    Where every radius is allowed the radius is the next multiple of 1/4096 above the needed one; a certified radius
    stays and the displacement is halved until it suffices (so the condition must hold for small displacements).
    """
    if layer.radius is None:
        return layer.with_radius(root_above(need(layer)))
    while not surely(need(layer), "<=", layer.radius**2):
        layer = layer.scaled(fmpq(1, 2))
    return layer


def root_above(square: Number) -> fmpq:
    """A fraction not below the square root, within two steps of 1/4096."""
    denominator = 4096
    guess = fmpq(math.ceil(math.sqrt(as_float(square)) * denominator), denominator)
    while not surely(square, "<=", guess**2):
        guess += fmpq(1, denominator)
    return guess


#: Rationals not below √d, within 10⁻⁴ of it.
ROOTS = {1: fmpq(1), 2: fmpq(99, 70), 3: fmpq(97, 56), 4: fmpq(2)}


def as_float(x: Number) -> float:
    """Roughly the number; no claim rests on it."""
    return int(x.p) / int(x.q) if isinstance(x, fmpq) else float(x)


def outside(layer: Layer) -> Layer:
    """The layer, brought to where the minimizer is farther away than the radius, mostly by less than a hundredth."""
    if layer.radius is None:
        layer = layer.with_radius(root_above(layer.distance2) * fmpq(127, 128))
    assert layer.radius is not None
    while not surely(layer.distance2, ">", layer.radius**2):
        layer = layer.scaled(fmpq(5, 4))
    return layer


def small_gap(share: fmpq) -> Need:
    """Condition: L − min L ≤ share · μ R²."""
    return lambda layer: layer.gap / (share * layer.mu)


def small_gradient(share: fmpq) -> Need:
    """Condition: ‖∇L‖ ≤ share · μ R."""
    return lambda layer: layer.gradient2 / (share * layer.mu) ** 2


def short_newton(share: fmpq) -> Need:
    """Condition: ‖(∇²L)⁻¹∇L‖ ≤ share · R."""
    return lambda layer: layer.newton2 / share**2


def met(*needs: Need) -> st.SearchStrategy[Layer]:
    """Layers brought to where one of the conditions holds, mostly just holds."""
    return seeded(lambda rng: meet(any_layer(rng), rng.choice(needs)))


def either(share_gap: fmpq, share_gradient: fmpq) -> st.SearchStrategy[Layer]:
    """Layers where one of the lemmas' two conditions holds."""
    return met(small_gap(share_gap), small_gradient(share_gradient))
