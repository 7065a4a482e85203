r"""Two directions that bound a layer's Newton step by its length: a step in a ball, and the Newton step scaled down.

Both in float64, as :func:`theory.updates.clipped_newton.count_steps` takes them, and in rationals at a point whose
eigenbasis is known. There the length ‖q‖ is a square root, so what is told is the squared radius that the step has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from theory.updates.clipped_newton import Array, eigen_coordinates


def ball_step(gradient: Array, hessian: Array, radius: float) -> Array:
    """argmax of gᵀq − ½ qᵀHq over ‖q‖ ≤ radius, by bisection on the multiplier, to rounding."""
    sigma, u, basis = eigen_coordinates(gradient, hessian)
    low, high = 0.0, float(np.linalg.norm(u)) / radius
    if np.linalg.norm(u / sigma) <= radius:
        high = 0.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if np.linalg.norm(u / (sigma + middle)) > radius else (low, middle)
    q = u / (sigma + high)
    return q if basis is None else basis @ q


def scaled_newton(gradient: Array, hessian: Array, radius: float) -> Array:
    """The Newton step, shortened to the radius if it is longer."""
    sigma, u, basis = eigen_coordinates(gradient, hessian)
    newton = u / sigma
    newton = newton * min(1.0, radius / max(float(np.linalg.norm(newton)), 1e-300))  # at the minimizer it is 0
    return newton if basis is None else basis @ newton


Exact = tuple[tuple[Fraction, ...], Fraction]


def exact_ball_step(u: Sequence[Fraction], sigma: Sequence[Fraction], radius: Fraction) -> Exact:
    """A step in a ball of a radius just below the given one (by a relative 2⁻¹⁶ or so), and the radius squared.

    The given radius itself is taken where the Newton step is no longer.
    """
    newton = tuple(a / s for a, s in zip(u, sigma, strict=True))
    if _squared(newton) <= radius**2:
        return newton, radius**2

    def step(multiplier: Fraction) -> tuple[Fraction, ...]:
        return tuple(a / (s + multiplier) for a, s in zip(u, sigma, strict=True))

    low, high = Fraction(0), Fraction(math.ceil(math.sqrt(_squared(u)) / float(radius) * 2**20) + 1, 2**20)
    while high - low > high / 2**16:
        middle = (low + high) / 2
        low, high = (middle, high) if _squared(step(middle)) > radius**2 else (low, middle)
    return step(high), _squared(step(high))


def exact_scaled_newton(u: Sequence[Fraction], sigma: Sequence[Fraction], radius: Fraction) -> Exact:
    """The Newton step scaled to a radius just below the given one, and that radius squared; else as above."""
    newton = tuple(a / s for a, s in zip(u, sigma, strict=True))
    if _squared(newton) <= radius**2:
        return newton, radius**2
    scale = Fraction(float(radius) / math.sqrt(_squared(newton)) * (1 - 2.0**-20))
    scaled = tuple(scale * x for x in newton)
    return scaled, _squared(scaled)


def _squared(vector: Sequence[Fraction]) -> Fraction:
    return sum((x * x for x in vector), Fraction(0))
