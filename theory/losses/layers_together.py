"""n layers of one coordinate each with L = ½ θᵀ((1 − ρ)I + ρ11ᵀ)θ, all updated at once: exact, hand-sized."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import sympy

from theory.ledger.claim import Instance, Sides
from theory.ledger.exact import related


def start(n: int, rho: Fraction, **more: Any) -> dict[str, Any]:
    """n layers, coupling ρ; ``more`` are a (every θ_i at the start), eta, R (radius), target and steps."""
    return {"n": n, "rho": Fraction(rho), **{key: Fraction(value) for key, value in more.items()}}


def gap(at: Instance, theta: Sequence[Fraction]) -> Fraction:
    """L − min L."""
    total = sum(theta, Fraction(0))
    return ((1 - at["rho"]) * sum((x * x for x in theta), Fraction(0)) + at["rho"] * total**2) / 2


def step(at: Instance, theta: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """One update of all layers: d_i = 1, H_ii = 1, clip R/2."""
    total, clip = sum(theta, Fraction(0)), at["R"] / 2
    gradients = ((1 - at["rho"]) * x + at["rho"] * total for x in theta)
    return tuple(x - at["eta"] * max(-clip, min(clip, g)) for x, g in zip(theta, gradients, strict=True))


def after(at: Instance, steps: int) -> tuple[Fraction, ...]:
    """Where the layers stand after so many steps."""
    theta = (at["a"],) * at["n"]
    for _ in range(steps):
        theta = step(at, theta)
    return theta


def assumptions(at: Instance) -> dict[str, bool]:
    """Assumption 1 (eigenvalues 1 − ρ and 1 + (n − 1)ρ) and 2 (the Hessian is constant)."""
    return {
        "Assumption 1": 0 < 1 - at["rho"] and 0 < 1 + (at["n"] - 1) * at["rho"],
        "Assumption 2 with radius R": at["R"] > 0,
    }


def after_the_bound(at: Instance) -> Sides:
    """The gap after ``steps`` steps, and the target."""
    return gap(at, after(at, int(at["steps"]))), at["target"]


def bound_is_over(at: Instance) -> dict[str, bool]:
    """The assumptions, and no fewer steps than the theorem's printed bound with d_i = μ_i = 1."""
    first = sympy.Rational(gap(at, after(at, 0)))
    bound = first + sympy.log(sympy.Rational(at["R"]) ** 2 / (32 * sympy.Rational(at["target"])))
    return {**assumptions(at), "steps ≥ the printed bound": related(bound, "<=", at["steps"])}
