r"""Smooth convex functions with Assumption 2's radius in closed form, and losses built from them.

A curvature with |(ln φ'')'| ≤ K changes by a factor of at most 2 over a distance ln 2 / K, and so does φ'' plus a
constant. Losses are L(θ) = Σ_k φ_k(a_kᵀp) + (ridge/2) ‖p‖² with p = θ − θ*; each φ_k has its minimum at 0, so L has
its own at p = 0. The arithmetic is written once, for float64 arrays and, through ``FUNCTIONS``, for Arb enclosures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np

from theory.updates.clipped_newton import Array, Evaluation, layer_slices

Kind = Literal["log_cosh", "softplus", "pseudo_huber", "exponential", "cosh", "quadratic"]

#: K · scale for each kind: the largest |(ln φ'')'| at unit scale.
LOG_SLOPE: dict[Kind, float] = {
    "log_cosh": 2.0,
    "softplus": 1.0,
    "pseudo_huber": 1.5,
    "exponential": 1.0,
    "cosh": 1.0,
    "quadratic": 0.0,
}

#: What the formulas need from a kind of number.
FUNCTIONS = SimpleNamespace(exp=np.exp, log=np.log, sqrt=np.sqrt, cosh=np.cosh, sinh=np.sinh, tanh=np.tanh)


def _log_cosh(z: Any, f: Any) -> tuple[Any, Any, Any]:
    slope = f.tanh(z)
    return f.log(f.cosh(z)), slope, 1 - slope * slope


def _softplus(z: Any, f: Any) -> tuple[Any, Any, Any]:
    slope = 1 / (1 + f.exp(-z))
    return f.log(1 + f.exp(z)), slope, slope * (1 - slope)


def _pseudo_huber(z: Any, f: Any) -> tuple[Any, Any, Any]:
    root = f.sqrt(1 + z * z)
    return root, z / root, 1 / (root * root * root)


def _exponential(z: Any, f: Any) -> tuple[Any, Any, Any]:
    e = f.exp(z)
    return e, e, e


def _cosh(z: Any, f: Any) -> tuple[Any, Any, Any]:
    return f.cosh(z), f.sinh(z), f.cosh(z)


def _quadratic(z: Any, f: Any) -> tuple[Any, Any, Any]:
    return z * z / 2, z, 1 + 0 * z


_UNIT: dict[Kind, Callable[[Any, Any], tuple[Any, Any, Any]]] = {
    "log_cosh": _log_cosh,
    "softplus": _softplus,
    "pseudo_huber": _pseudo_huber,
    "exponential": _exponential,
    "cosh": _cosh,
    "quadratic": _quadratic,
}


@dataclass(frozen=True)
class Smooth:
    """φ(x) = amplitude · scale² · (f(z) − f(shift) − f'(shift)(z − shift)), z = x / scale + shift: minimum 0 at 0.

    Attributes:
        kind: Which f.
        amplitude: Multiplies the curvature f''(z).
        scale: Length over which the curvature changes.
        shift: Where on f the minimum stands.
    """

    kind: Kind
    amplitude: Any = 1
    scale: Any = 1
    shift: Any = 0

    @property
    def log_slope(self) -> float:
        """K, a bound on |(ln φ'')'|."""
        return LOG_SLOPE[self.kind] / float(self.scale)

    def __call__(self, x: Any, functions: Any = FUNCTIONS) -> tuple[Any, Any, Any]:
        """Value, slope and curvature at x."""
        unit = _UNIT[self.kind]
        value, slope, curvature = unit(x / self.scale + self.shift, functions)
        value0, slope0, _ = unit(0 * x + self.shift, functions)
        c = self.amplitude
        return (
            c * self.scale * self.scale * (value - value0) - c * self.scale * slope0 * x,
            c * self.scale * (slope - slope0),
            c * curvature,
        )


@dataclass(frozen=True)
class RidgeLoss:
    """L(p) = Σ_k φ_k(a_kᵀp) + (ridge/2) ‖p‖² over layers of the given dimensions, in float64.

    Attributes:
        directions: The a_k as rows, shape (m, d).
        functions: φ_k: each maps x to value, slope, curvature.
        ridge: Curvature added in every direction.
        dimensions: d_i of each layer.
    """

    directions: Array
    functions: Sequence[Callable[[Array], tuple[Any, Any, Any]]]
    ridge: float
    dimensions: tuple[int, ...]

    def _parts(self, p: Array) -> tuple[Array, Array, Array]:
        x = self.directions @ p
        value, slope, curvature = zip(*(f(t) for f, t in zip(self.functions, x, strict=True)), strict=True)
        return np.array(value), np.array(slope), np.array(curvature)

    def __call__(self, p: Array) -> Evaluation:
        """Gap, gradient and the layers' Hessian blocks at p."""
        value, slope, curvature = self._parts(p)
        blocks = []
        for where in layer_slices(self.dimensions):
            rows = self.directions[:, where]
            blocks.append(rows.T @ (curvature[:, None] * rows) + self.ridge * np.eye(rows.shape[1]))
        gap = float(value.sum() + self.ridge / 2 * p @ p)
        return Evaluation(gap, self.directions.T @ slope + self.ridge * p, blocks)

    def mus(self) -> list[float]:
        """μ_i: smallest eigenvalue of each H_ii at the minimizer."""
        return [float(np.linalg.eigvalsh(block)[0]) for block in self(np.zeros(sum(self.dimensions))).blocks]

    def radius(self) -> float:
        r"""A radius R, the same for all layers, for which the joint Assumption 2 holds.

        |a_kᵀδ| ≤ Σ_i ‖a_ki‖ ‖δ_i‖ ≤ R Σ_i ‖a_ki‖, so R = min_k ln 2 / (K_k Σ_i ‖a_ki‖) keeps every φ_k'' within a
        factor 2, hence every H_ii in the Loewner order.
        """
        reach = [
            f.log_slope * sum(float(np.linalg.norm(a[where])) for where in layer_slices(self.dimensions))
            for f, a in zip(self.functions, self.directions, strict=True)
            if isinstance(f, Smooth)
        ]
        steepest = max(reach, default=0.0)
        return math.log(2.0) / steepest if steepest > 0 else math.inf
