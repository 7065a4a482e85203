r"""Layers on which the lemmas are searched: exact in rationals, or enclosed by Arb; Assumption 2's radius certified.

A layer is told as the displacement p from its minimizer. :class:`Diagonal` is a sum of functions of one variable along
an orthonormal basis, which drops out of every quantity here; :class:`RidgePair` has two coordinates and a Hessian whose
eigenvectors turn. Every layer satisfies Assumption 2 in the printed (spectral norm) form with its ``radius``, and so in
the Loewner form; a radius of None means every radius. Numbers are flint's rationals (fmpq) and enclosures (arb), which
mix.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import SimpleNamespace
from typing import Any, TypeAlias

from flint import arb, fmpq, fmpz

from theory.exact import enclose, related
from theory.piecewise import Piecewise
from theory.smooth import Smooth

#: An fmpq, exact; or an arb, an enclosure.
Number: TypeAlias = Any
Parts = tuple[Number, Number, Number]

#: The functions of theory.smooth, for Arb.
ARB = SimpleNamespace(exp=arb.exp, log=arb.log, sqrt=arb.sqrt, cosh=arb.cosh, sinh=arb.sinh, tanh=arb.tanh)

ZERO, HALF, ONE = fmpq(0), fmpq(1, 2), fmpq(1)


def total(values: Iterable[Number]) -> Number:
    """Their sum, exact if all are."""
    return sum(values, ZERO)


def least(values: Iterable[Number]) -> Number:
    """The smallest, exact if all are."""
    values = list(values)
    if any(isinstance(value, arb) for value in values):
        result = enclose(values[0])
        for value in values[1:]:
            result = result.min(enclose(value))
        return result
    return min(values)


def midpoint(x: arb) -> fmpq:
    """The midpoint of an enclosure, exactly."""
    mantissa, exponent = x.mid().man_exp()
    power = fmpz(2) ** abs(int(exponent))
    return fmpq(mantissa * power) if exponent >= 0 else fmpq(mantissa, power)


def clamp(x: Number, bound: Number) -> Number:
    """x clipped to [−bound, bound]."""
    return -least([-least([x, bound]), bound])


class Ramps:
    """φ with φ(0) = φ'(0) = 0 and φ'' linear between knots: exact at rationals, enclosed at enclosures.

    The same function as a :class:`~theory.piecewise.Piecewise`, with value and slope at each knot added up beforehand.
    """

    def __init__(self, shape: Piecewise) -> None:
        self.shape = shape
        given = dict(zip(shape.knots, shape.curvatures, strict=True))
        given.setdefault(0 * shape.knots[0], shape.curvature(0 * shape.knots[0]))
        pairs = sorted(given.items())
        self.knots = [fmpq(x.numerator, x.denominator) for x, _ in pairs]
        self.curvatures = [fmpq(c.numerator, c.denominator) for _, c in pairs]
        lengths = [b - a for a, b in zip(self.knots, self.knots[1:], strict=False)]
        ends = list(zip(self.curvatures, self.curvatures[1:], strict=False))
        self.bends = [(d - c) / length for (c, d), length in zip(ends, lengths, strict=True)]
        origin = self.knots.index(ZERO)
        self.slopes, self.values = [ZERO] * len(pairs), [ZERO] * len(pairs)
        for k in range(origin, len(pairs) - 1):
            self.values[k + 1], self.slopes[k + 1], _ = self._from(k, lengths[k])
        for k in range(origin - 1, -1, -1):
            length, (c, d) = lengths[k], ends[k]
            self.slopes[k] = self.slopes[k + 1] - (c + d) * length / 2
            self.values[k] = self.values[k + 1] - self.slopes[k] * length - (2 * c + d) * length**2 / 6

    def __repr__(self) -> str:
        pieces = ", ".join(f"{x}: {c}" for x, c in zip(self.knots, self.curvatures, strict=True))
        return f"Ramps({pieces})"

    def _from(self, k: int, offset: fmpq) -> Parts:
        """Value, slope and curvature at an offset from a knot, to the right (to the left only for the first)."""
        bend = self.bends[k] if k < len(self.bends) and offset >= 0 else ZERO
        curvature = self.curvatures[k] + bend * offset
        slope = self.slopes[k] + offset * (self.curvatures[k] + bend * offset / 2)
        value = self.values[k] + offset * (self.slopes[k] + offset * (self.curvatures[k] / 2 + bend * offset / 6))
        return value, slope, curvature

    def at(self, x: Number) -> Parts:
        """Value, slope and curvature at x."""
        if isinstance(x, fmpq):
            k = max(0, bisect_right(self.knots, x) - 1)
            return self._from(k, x - self.knots[k])
        middle = midpoint(x)
        value, slope, curvature = self.at(middle)
        reach = arb(0, x.rad())
        slope = slope + reach * max(self.curvatures)
        return value + reach * slope, slope, curvature + reach * max(map(abs, self.bends), default=ZERO)


@dataclass(frozen=True)
class Curve:
    """A smooth φ of :mod:`theory.smooth`, with rational parameters, enclosed."""

    kind: Any
    amplitude: fmpq = ONE
    scale: fmpq = ONE
    shift: fmpq = ZERO

    @cached_property
    def _smooth(self) -> Smooth:
        return Smooth(self.kind, enclose(self.amplitude), enclose(self.scale), enclose(self.shift))

    @property
    def radius(self) -> fmpq:
        """A radius of Assumption 2: |(ln φ'')'| ≤ K/scale gives ln 2 · scale / K, and ln 2 > 0.69."""
        return fmpq(69, 100) * self.scale / fmpq(*Smooth(self.kind).log_slope.as_integer_ratio())

    def at(self, x: Number) -> Parts:
        """Value, slope and curvature at x."""
        return self._smooth(enclose(x), ARB)


Phi = Ramps | Curve


@dataclass(frozen=True)
class Diagonal:
    """L = Σ_j φ_j(p_j), p = V(θ − θ*) for a fixed orthonormal V.

    ``idle`` further coordinates have the first φ and stand at their minimum.
    """

    functions: tuple[Phi, ...]
    position: tuple[Number, ...]
    radius: fmpq | None = None
    idle: int = 0

    @property
    def dimension(self) -> int:
        """d."""
        return len(self.functions) + self.idle

    @cached_property
    def parts(self) -> tuple[Parts, ...]:
        """Value, slope and curvature along each coordinate."""
        return tuple(phi.at(x) for phi, x in zip(self.functions, self.position, strict=True))

    @cached_property
    def mu(self) -> Number:
        """The smallest eigenvalue of the Hessian at the minimizer."""
        return least(phi.at(ZERO)[2] for phi in self.functions)

    @cached_property
    def gap(self) -> Number:
        """L − min L."""
        return total(value for value, _, _ in self.parts)

    @property
    def distance2(self) -> Number:
        """‖θ − θ*‖²."""
        return total(x * x for x in self.position)

    @cached_property
    def gradient2(self) -> Number:
        """‖∇L‖²."""
        return total(u * u for _, u, _ in self.parts)

    @cached_property
    def form(self) -> Number:
        """∇Lᵀ (∇²L)⁻¹ ∇L."""
        return total(u * u / sigma for _, u, sigma in self.parts)

    @cached_property
    def newton2(self) -> Number:
        """‖(∇²L)⁻¹ ∇L‖²."""
        return total((u / sigma) ** 2 for _, u, sigma in self.parts)

    @property
    def spectrum(self) -> tuple[tuple[Number, Number], ...]:
        """(u_j, σ_j): gradient in the eigenbasis, and eigenvalues."""
        return tuple((u, sigma) for _, u, sigma in self.parts)

    def enclosed(self) -> Diagonal:
        """The same point as an enclosure: exact rationals grow threefold with every step, enclosures do not."""
        return replace(self, position=tuple(enclose(x) for x in self.position))

    def scaled(self, factor: fmpq) -> Diagonal:
        """The same loss at a displacement times the factor."""
        return replace(self, position=tuple(x * factor for x in self.position))

    def with_radius(self, radius: fmpq) -> Diagonal:
        """The same layer, with a smaller radius of Assumption 2 (or any, where every radius is allowed).

        Raises:
            ValueError: If the layer's radius is smaller.
        """
        if self.radius is not None and radius > self.radius:
            raise ValueError(f"radius must be at most {self.radius}, the certified one, got {radius}")
        return replace(self, radius=radius)

    def step(self, clip: Number, lr: fmpq = HALF) -> Diagonal:
        """After the theorem's update with this clip."""
        moves = [clamp(u / sigma, clip) for u, sigma in self.spectrum]
        return replace(self, position=tuple(x - lr * move for x, move in zip(self.position, moves, strict=True)))


@dataclass(frozen=True)
class RidgePair:
    r"""L = (ridge/2)‖p‖² + Σ_k φ_k(a_k·p) in two coordinates; the a_k have positive entries, so H_12 > 0.

    Radius, printed form: ‖H'⁻¹H‖₂ ≤ 1 + ‖H'⁻¹‖₂ ‖H − H'‖₂ ≤ 1 + Σ_k |Δφ_k''| ‖a_k‖² / ridge ≤ 2; with
    0 < φ_k'' ≤ c_k it holds at every distance once Σ_k c_k ‖a_k‖² ≤ ridge.
    """

    ridge: fmpq
    directions: tuple[tuple[fmpq, fmpq], ...]
    functions: tuple[Curve, ...]
    position: tuple[Number, Number]
    radius: fmpq | None = None
    dimension = 2

    def _at(self, position: Sequence[Number]) -> tuple[Any, ...]:
        x, y = (enclose(value) for value in position)
        c = self.ridge
        value, gx, gy, hxx, hxy, hyy = c * (x * x + y * y) / 2, c * x, c * y, arb(c), arb(0), arb(c)
        for (a, b), phi in zip(self.directions, self.functions, strict=True):
            v, slope, curvature = phi.at(a * x + b * y)
            value += v
            gx += slope * a
            gy += slope * b
            hxx += curvature * a * a
            hxy += curvature * a * b
            hyy += curvature * b * b
        return value, gx, gy, hxx, hxy, hyy

    @cached_property
    def _here(self) -> tuple[Any, ...]:
        return self._at(self.position)

    @cached_property
    def mu(self) -> Number:
        """The smallest eigenvalue of the Hessian at the minimizer."""
        _, _, _, a, b, c = self._at((ZERO, ZERO))
        return _eigen(a, b, c)[0][0]

    @property
    def gap(self) -> Number:
        """L − min L."""
        return self._here[0]

    @property
    def distance2(self) -> Number:
        """‖θ − θ*‖²."""
        return total(x * x for x in self.position)

    @property
    def gradient2(self) -> Number:
        """‖∇L‖²."""
        return self._here[1] ** 2 + self._here[2] ** 2

    @cached_property
    def _newton(self) -> tuple[Any, Any]:
        _, gx, gy, a, b, c = self._here
        det = a * c - b * b
        return (c * gx - b * gy) / det, (a * gy - b * gx) / det

    @property
    def form(self) -> Number:
        """∇Lᵀ (∇²L)⁻¹ ∇L."""
        nx, ny = self._newton
        return self._here[1] * nx + self._here[2] * ny

    @property
    def newton2(self) -> Number:
        """‖(∇²L)⁻¹ ∇L‖²."""
        nx, ny = self._newton
        return nx * nx + ny * ny

    @cached_property
    def _eigen(self) -> tuple[tuple[Any, tuple[Any, Any]], ...]:
        return _eigen(*self._here[3:])

    @property
    def spectrum(self) -> tuple[tuple[Number, Number], ...]:
        """(u_j, σ_j): gradient in the eigenbasis, and eigenvalues."""
        _, gx, gy, *_ = self._here
        return tuple((vx * gx + vy * gy, sigma) for sigma, (vx, vy) in self._eigen)

    def enclosed(self) -> RidgePair:
        """The same point as an enclosure."""
        return replace(self, position=(enclose(self.position[0]), enclose(self.position[1])))

    def scaled(self, factor: fmpq) -> RidgePair:
        """The same loss at a displacement times the factor."""
        x, y = self.position
        return replace(self, position=(x * factor, y * factor))

    def with_radius(self, radius: fmpq) -> RidgePair:
        """The same layer with a radius; every radius is certified."""
        return replace(self, radius=radius)

    def step(self, clip: Number, lr: fmpq = HALF) -> RidgePair:
        """After the theorem's update with this clip."""
        x, y = self.position
        for (u, sigma), (_, (vx, vy)) in zip(self.spectrum, self._eigen, strict=True):
            move = lr * clamp(u / sigma, clip)
            x, y = x - move * vx, y - move * vy
        return replace(self, position=(x, y))


def _eigen(a: Any, b: Any, c: Any) -> tuple[tuple[Any, tuple[Any, Any]], ...]:
    """Eigenvalues (the smaller first) and unit eigenvectors of [[a, b], [b, c]] with b > 0."""
    middle, half = (a + c) / 2, (a - c) / 2
    root = (half * half + b * b).sqrt()
    vx, vy = b, root - half
    length = (vx * vx + vy * vy).sqrt()
    vx, vy = vx / length, vy / length
    return (middle - root, (-vy, vx)), (middle + root, (vx, vy))


Layer = Diagonal | RidgePair


def clipped_decrease(layer: Layer, clip: Number) -> Number:
    """S = Σ_j min{ρ |u_j|, u_j²/σ_j}."""
    return total(least([clip * abs(u), u * u / sigma]) for u, sigma in layer.spectrum)


def theorem_clip(layer: Layer) -> Number:
    """The theorem's R / (2 √d): exact where √d is rational.

    Raises:
        ValueError: If the layer has no radius.
    """
    if layer.radius is None:
        raise ValueError("the clip needs a radius; choose one with with_radius")
    root = math.isqrt(layer.dimension)
    if root**2 == layer.dimension:
        return layer.radius / (2 * root)
    return layer.radius / (2 * arb(layer.dimension).sqrt())


def run(layer: Layer, target: Number, limit: int = 2000) -> tuple[int, Layer]:
    """Steps of the theorem's update (η = ½, its clip) until L − min L is at most the target, and where it then stands.

    Raises:
        ValueError: If the target is not reached within the limit.
    """
    clip = theorem_clip(layer)
    for step in range(limit + 1):
        if related(layer.gap, "<=", target):
            return step, layer
        layer = layer.step(clip)
    raise ValueError(f"the gap is still above {target} after {limit} steps; raise the limit or the target")
