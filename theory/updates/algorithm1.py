"""Algorithm 1 of the paper in exact arithmetic: the formulas of ``helene.functional``, on rationals.

Vectors are tuples of numbers (Fraction, int, sympy); every coordinate carries its own floor, so a layer is a run of
equal floors. ``test_algorithm1.py`` holds this copy against ``helene.functional``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

Vector = tuple[Any, ...]


@dataclass(frozen=True)
class Settings:
    """Constants of Algorithm 1; ``weight_decay`` and ``denominator_eps`` are the paper's two ε."""

    lr: Any = 1
    beta1: Any = 0
    beta2: Any = 0
    gamma: Any = 1
    denominator_eps: Any = 0
    weight_decay: Any = 0


@dataclass(frozen=True)
class State:
    """Parameters, momentum and curvature before a step."""

    theta: Vector
    m: Vector
    h: Vector

    @staticmethod
    def start(theta: Vector) -> State:
        """The start of Algorithm 1: m_0 = 0 and h_0 = 0."""
        zero = tuple(0 * value for value in theta)
        return State(theta, zero, zero)


def anneal(t: int, beta1: Any, r: Any) -> Any:
    """α(t) = β1 + (1 − β1) r^t with r = e^{−1/T}; every r in (0, 1) is one, with T = −1/ln r."""
    return beta1 + (1 - beta1) * r**t


def larger(a: Any, b: Any) -> Any:
    """The larger of two numbers, a on ties."""
    return a if a >= b else b


def step(state: State, g: Vector, estimate: Vector | None, floors: Vector, settings: Settings, alpha: Any = 1) -> State:
    """One step (lines 6 to 15); ``estimate`` is ĥ, or None where this step estimates none."""
    s = settings
    m = tuple(s.beta1 * old + alpha * new for old, new in zip(state.m, g, strict=True))
    h = state.h
    if estimate is not None:
        h = tuple(s.beta2 * old + (1 - s.beta2) * new for old, new in zip(state.h, estimate, strict=True))
    decayed = tuple(value - s.lr * s.weight_decay * value for value in state.theta)
    theta = tuple(
        value - s.lr * mj / (s.gamma * larger(hj, floor) + s.denominator_eps)
        for value, mj, hj, floor in zip(decayed, m, h, floors, strict=True)
    )
    return State(theta, m, h)


def heavy_ball(thetas: tuple[Vector, Vector], g: Vector, floors: Vector, settings: Settings, alpha: Any = 1) -> Vector:
    """One step of Polyak's heavy ball with the step size lr/(γλ + ε) of each layer, in its form without a momentum.

    θ_{t+1} = θ_t − s α g_t + β1 (θ_t − θ_{t−1}), from the two last iterates; no weight decay.
    """
    before, now = thetas
    sizes = (settings.lr / (settings.gamma * floor + settings.denominator_eps) for floor in floors)
    return tuple(
        b - size * alpha * gj + settings.beta1 * (b - a) for a, b, gj, size in zip(before, now, g, sizes, strict=True)
    )


def spsa_on_quadratic(theta: Vector, sigmas: Vector, z: Vector) -> Vector:
    """c z for L = ½ Σ σ_j θ_j²: c = zᵀ∇L, exactly, whatever the probe's radius."""
    c = sum((sigma * value * zj for sigma, value, zj in zip(sigmas, theta, z, strict=True)), Fraction(0))
    return tuple(c * zj for zj in z)


def squared_distance(a: Sequence[Any], b: Sequence[Any]) -> Any:
    """Σ (a_j − b_j)², zero exactly where the two are equal."""
    return sum(((x - y) ** 2 for x, y in zip(a, b, strict=True)), Fraction(0))
