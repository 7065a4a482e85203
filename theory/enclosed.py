r"""One clipped step on a smooth loss whose eigenbasis turns, in Arb balls: enclosed, never rounded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import flint
from hypothesis import strategies as st

from theory.smooth import LOG_SLOPE, Kind, Smooth

BITS = 192
ARB = SimpleNamespace(
    exp=lambda z: z.exp(),
    log=lambda z: z.log(),
    sqrt=lambda z: z.sqrt(),
    cosh=lambda z: z.cosh(),
    sinh=lambda z: z.sinh(),
    tanh=lambda z: z.tanh(),
)


def ball(x: Fraction | int) -> flint.arb:
    """An enclosure of a rational."""
    x = Fraction(x)
    return flint.arb(flint.fmpq(x.numerator, x.denominator))


@dataclass(frozen=True)
class RidgeInstance:
    """L(p) = Σ_k φ_k(a_kᵀp) + (ridge/2) ‖p‖² and a point, all data rational."""

    directions: tuple[tuple[Fraction, ...], ...]
    functions: tuple[tuple[Kind, Fraction, Fraction, Fraction], ...]  # kind, amplitude, scale, shift
    ridge: Fraction
    p: tuple[Fraction, ...]


@dataclass(frozen=True)
class EnclosedStep:
    """Enclosures of what the one-step lemmas compare, for the theorem's clip ρ = R / (2 √d)."""

    gap: Any
    s: Any
    distance: Any
    clip: Any
    decrease: Any


def _loss(instance: RidgeInstance, p: Sequence[Any]) -> tuple[Any, list[Any], list[Any]]:
    value, slopes, curvatures = ball(0), [], []
    for a, (kind, amplitude, scale, shift) in zip(instance.directions, instance.functions, strict=True):
        x = sum((ball(c) * t for c, t in zip(a, p, strict=True)), ball(0))
        v, slope, curvature = Smooth(kind, ball(amplitude), ball(scale), ball(shift))(x, ARB)
        value += v
        slopes.append(slope)
        curvatures.append(curvature)
    return value + ball(instance.ridge) / 2 * sum((t * t for t in p), ball(0)), slopes, curvatures


def enclosed_step(instance: RidgeInstance) -> EnclosedStep | None:
    """One step at the point; None where Arb cannot separate the eigenvalues.

    The radius is 693/1000 / max_k (K_k ‖a_k‖) < ln 2 / max_k (K_k ‖a_k‖), see :mod:`theory.smooth`.
    """
    before, flint.ctx.prec = flint.ctx.prec, BITS
    try:
        d = len(instance.p)
        p = [ball(x) for x in instance.p]
        gap, slopes, curvatures = _loss(instance, p)
        rows = [[ball(c) for c in a] for a in instance.directions]
        gradient = [
            sum((s * a[i] for s, a in zip(slopes, rows, strict=True)), ball(instance.ridge) * p[i]) for i in range(d)
        ]
        hessian = flint.acb_mat(
            [
                [
                    sum(
                        (k * a[i] * a[j] for k, a in zip(curvatures, rows, strict=True)),
                        ball(instance.ridge * (i == j)),
                    )
                    for j in range(d)
                ]
                for i in range(d)
            ]
        )
        try:
            values, vectors = hessian.eig(right=True)
        except ValueError:
            return None
        reach = ball(0)
        for a, (kind, _, scale, _) in zip(rows, instance.functions, strict=True):
            reach = reach.max(ball(Fraction(LOG_SLOPE[kind])) / ball(scale) * sum((c * c for c in a), ball(0)).sqrt())
        clip = ball(Fraction(693, 1000)) / reach / (2 * ball(d).sqrt())
        s, new = ball(0), list(p)
        for j in range(d):
            v = [vectors[i, j].real for i in range(d)]
            norm = sum((x * x for x in v), ball(0)).sqrt()
            v = [x / norm for x in v]
            u, sigma = sum((x * g for x, g in zip(v, gradient, strict=True)), ball(0)), values[j].real
            s += (clip * abs(u)).min(u * u / sigma)
            c = (u / sigma).min(clip).max(-clip)
            new = [x - c * y / 2 for x, y in zip(new, v, strict=True)]
        return EnclosedStep(gap, s, sum((x * x for x in p), ball(0)).sqrt(), clip, gap - _loss(instance, new)[0])
    finally:
        flint.ctx.prec = before


@st.composite
def ridge_instances(draw: st.DrawFn) -> RidgeInstance:
    """Two or three dimensions, two to four directions that are not orthogonal, five kinds of functions."""
    d = draw(st.integers(2, 3))
    m = draw(st.integers(d, d + 1))
    number = st.fractions(-2, 2, max_denominator=3)
    scale = st.sampled_from([Fraction(1, 4), Fraction(1), Fraction(4)])
    kinds: list[Kind] = ["log_cosh", "softplus", "pseudo_huber", "exponential", "cosh"]
    directions = draw(st.lists(st.tuples(*[number] * d).filter(any), min_size=m, max_size=m))
    functions = draw(st.lists(st.tuples(st.sampled_from(kinds), scale, scale, number), min_size=m, max_size=m))
    ridge = draw(st.sampled_from([Fraction(1, 100), Fraction(1, 2)]))
    p = draw(st.tuples(*[st.fractions(-4, 4, max_denominator=3)] * d).filter(any))
    return RidgeInstance(tuple(directions), tuple(functions), ridge, p)
