r"""Layers on which the lemmas are searched: exact in rationals, or enclosed by Arb; Assumption 2's radius certified.

A layer is told as the displacement p from its minimizer. :class:`Diagonal` is a sum of functions of one variable along
an orthonormal basis, which drops out of every quantity here; :class:`Ridge` has a Hessian whose eigenvectors turn.
``radius`` is one for which Assumption 2 holds, None where every radius will do; what builds a layer certifies it
(:mod:`theory.losses.strategies`). Numbers are flint's rationals (fmpq) and enclosures (arb), which mix.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from flint import acb_mat, arb, arb_mat, fmpq

from theory.ledger.exact import enclose, related
from theory.losses.functions import HALF, ZERO, Curve, Number, Parts, Phi, clamp, least, total


@dataclass(frozen=True)
class Diagonal:
    """L = Σ_j φ_j(p_j), p = V(θ − θ*) for a fixed orthonormal V.

    ``idle`` further coordinates stand at their minimum, with distinct curvatures there above that of the first.
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
        return replace(self, radius=_narrowed(self.radius, radius))

    def step(self, clip: Number, lr: fmpq = HALF) -> Diagonal:
        """After the theorem's update with this clip."""
        moves = [clamp(u / sigma, clip) for u, sigma in self.spectrum]
        return replace(self, position=tuple(x - lr * move for x, move in zip(self.position, moves, strict=True)))


Eigen = tuple[tuple[Any, tuple[Any, ...]], ...]
Jet = tuple[Any, list[Any], list[list[Any]]]


@dataclass(frozen=True)
class Ridge:
    r"""L = (ridge/2)‖p‖² + Σ_k φ_k(a_k·p), enclosed; the a_k need not be orthogonal."""

    ridge: fmpq
    directions: tuple[tuple[fmpq, ...], ...]
    functions: tuple[Curve, ...]
    position: tuple[Number, ...]
    radius: fmpq | None = None

    @property
    def dimension(self) -> int:
        """d."""
        return len(self.position)

    def at(self, position: Sequence[Number]) -> Jet:
        """L − min L, gradient and Hessian at a displacement."""
        p, c = [enclose(x) for x in position], self.ridge
        value, gradient = c * total(x * x for x in p) / 2, [c * x for x in p]
        hessian = [[arb(c) if i == j else arb(0) for j in range(len(p))] for i in range(len(p))]
        for direction, phi in zip(self.directions, self.functions, strict=True):
            v, slope, curvature = phi.at(total(a * x for a, x in zip(direction, p, strict=True)))
            value += v
            for i, a in enumerate(direction):
                gradient[i] += slope * a
                for j, b in enumerate(direction):
                    hessian[i][j] += curvature * (a * b)
        return value, gradient, hessian

    @cached_property
    def _here(self) -> Jet:
        return self.at(self.position)

    @cached_property
    def mu(self) -> Number:
        """The smallest eigenvalue of the Hessian at the minimizer."""
        return least(value for value, _ in _eigen(self.at([ZERO] * self.dimension)[2]))

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
        return total(g * g for g in self._here[1])

    @cached_property
    def _newton(self) -> list[Any]:
        _, gradient, hessian = self._here
        return arb_mat(hessian).solve(arb_mat([[g] for g in gradient])).entries()

    @property
    def form(self) -> Number:
        """∇Lᵀ (∇²L)⁻¹ ∇L."""
        return total(g * n for g, n in zip(self._here[1], self._newton, strict=True))

    @property
    def newton2(self) -> Number:
        """‖(∇²L)⁻¹ ∇L‖²."""
        return total(n * n for n in self._newton)

    @cached_property
    def _eigen(self) -> Eigen:
        return _eigen(self._here[2])

    @property
    def spectrum(self) -> tuple[tuple[Number, Number], ...]:
        """(u_j, σ_j): gradient in the eigenbasis, and eigenvalues.

        Raises:
            ValueError: If Arb cannot tell the eigenvalues apart.
        """
        gradient = self._here[1]
        return tuple((total(v * g for v, g in zip(vector, gradient, strict=True)), s) for s, vector in self._eigen)

    def enclosed(self) -> Ridge:
        """The same point as an enclosure."""
        return replace(self, position=tuple(enclose(x) for x in self.position))

    def scaled(self, factor: fmpq) -> Ridge:
        """The same loss at a displacement times the factor."""
        return replace(self, position=tuple(x * factor for x in self.position))

    def with_radius(self, radius: fmpq) -> Ridge:
        """The same layer with a smaller radius of Assumption 2 (or any, where every radius is allowed)."""
        return replace(self, radius=_narrowed(self.radius, radius))

    def step(self, clip: Number, lr: fmpq = HALF) -> Ridge:
        """After the theorem's update with this clip."""
        p = list(self.position)
        for (u, sigma), (_, vector) in zip(self.spectrum, self._eigen, strict=True):
            move = lr * clamp(u / sigma, clip)
            p = [x - move * v for x, v in zip(p, vector, strict=True)]
        return replace(self, position=tuple(p))


def _narrowed(certified: fmpq | None, radius: fmpq) -> fmpq:
    if certified is not None and radius > certified:
        raise ValueError(f"radius must be at most {certified}, the certified one, got {radius}")
    return radius


def _eigen(hessian: list[list[Any]]) -> Eigen:
    """Eigenvalues and unit eigenvectors of a symmetric matrix."""
    if len(hessian) == 2 and bool(hessian[0][1] > 0):  # closed form: it tells close eigenvalues apart too
        (a, b), (_, c) = hessian
        middle, half = (a + c) / 2, (a - c) / 2
        root = (half * half + b * b).sqrt()
        vx, vy = b, root - half
        length = (vx * vx + vy * vy).sqrt()
        vx, vy = vx / length, vy / length
        return (middle - root, (-vy, vx)), (middle + root, (vx, vy))
    values, vectors = acb_mat(hessian).eig(right=True)
    pairs = []
    for j, value in enumerate(values):
        vector = [vectors[i, j].real for i in range(len(hessian))]
        length = total(x * x for x in vector).sqrt()
        pairs.append((value.real, tuple(x / length for x in vector)))
    return tuple(pairs)


Layer = Diagonal | Ridge


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
