"""Hand-sized instances for witnesses: one layer with d = 1, minimizer 0 and a piecewise linear second derivative."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from theory.ledger.claim import Instance
from theory.losses.functions import Ramps, as_fmpq
from theory.losses.layers import Diagonal
from theory.losses.piecewise import Piecewise


def parabola(c: Fraction | int, theta: Fraction | int, **more: Any) -> dict[str, Any]:
    """L = c θ²/2 at θ; ``more`` are R, clip, eta and the like."""
    return {"knots": (Fraction(0),), "curvatures": (Fraction(c),), "theta": Fraction(theta), **_exact(more)}


def ramps(points: Mapping[Any, Any], theta: Fraction | int, **more: Any) -> dict[str, Any]:
    """L'' given at points, linear between and constant outside, at θ."""
    knots = tuple(Fraction(point) for point in points)
    return {
        "knots": knots,
        "curvatures": tuple(Fraction(value) for value in points.values()),
        "theta": Fraction(theta),
        **_exact(more),
    }


def _exact(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: Fraction(value) if isinstance(value, int) else value for name, value in values.items()}


def shape(at: Instance) -> Piecewise:
    """The instance's L, as a function."""
    return Piecewise(at["knots"], at["curvatures"])


def layer(at: Instance) -> Diagonal:
    """The instance as a layer standing at θ."""
    radius = as_fmpq(at["R"]) if "R" in at else None
    return Diagonal((Ramps(shape(at)),), (as_fmpq(at["theta"]),), radius)


def assumptions(at: Instance) -> dict[str, bool]:
    """Assumption 1 with μ > 0 and Assumption 2 with radius R; with d = 1 its printed and its Loewner form agree."""
    return {
        "Assumption 1, L'' > 0": min(at["curvatures"]) > 0,
        "Assumption 2 with radius R": shape(at).certifies(at["R"]),
    }


def gap_at_most(at: Instance, share: Fraction) -> bool:
    """L − min L ≤ share · μ R²."""
    here = layer(at)
    return bool(here.gap <= as_fmpq(share) * here.mu * as_fmpq(at["R"]) ** 2)
