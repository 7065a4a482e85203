r"""One layer at one point, in exact rationals: everything the lemmas of ``proofs/separable/gap_lemma.md`` speak about.

The loss is Σ_j φ_j(p_j) + ψ(Σ_j p_j) in the eigen-coordinates p = V(θ − θ*) of the point. With ψ = 0 the eigenbasis is
the same everywhere. With ψ it turns: ψ'' vanishes at the point (so the basis there is known exactly) but not around it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, cached_property
from itertools import accumulate
from random import Random

from theory.losses.piecewise import Piecewise, even, halving, quadratic


@dataclass(frozen=True)
class ExactLayer:
    """A layer, a point of it and a radius for which Assumption 2 holds.

    Attributes:
        functions: φ_j of the coordinates that are away from their minimum.
        p: Their displacements from the minimizer.
        radius: R, certified by :meth:`certify`.
        root: √d; the dimension d = root² may exceed ``len(p)``, the others being at their minimum.
        crossing: ψ, with ψ'' = 0 at Σ_j p_j; None for ψ = 0. With it every φ_j must be quadratic.
    """

    functions: tuple[Piecewise, ...]
    p: tuple[Fraction, ...]
    radius: Fraction
    root: int
    crossing: Piecewise | None = None

    def loss(self, p: Sequence[Fraction]) -> Fraction:
        """L − min L."""
        total = sum((f.value(x) for f, x in zip(self.functions, p, strict=True)), Fraction(0))
        return total + (self.crossing.value(sum(p, Fraction(0))) if self.crossing else 0)

    @cached_property
    def gap(self) -> Fraction:
        """G at the point."""
        return self.loss(self.p)

    @cached_property
    def u(self) -> tuple[Fraction, ...]:
        """The gradient in eigen-coordinates."""
        extra = self.crossing.slope(sum(self.p, Fraction(0))) if self.crossing else Fraction(0)
        return tuple(f.slope(x) + extra for f, x in zip(self.functions, self.p, strict=True))

    @cached_property
    def sigma(self) -> tuple[Fraction, ...]:
        """The eigenvalues at the point."""
        return tuple(f.curvature(x) for f, x in zip(self.functions, self.p, strict=True))

    @property
    def mu(self) -> Fraction:
        """A lower bound of the smallest eigenvalue at the minimizer; exact for ψ = 0 (ψ'' ≥ 0 only adds)."""
        return min(f.curvature(Fraction(0)) for f in self.functions)

    @cached_property
    def distance_squared(self) -> Fraction:
        """D²."""
        return sum((x * x for x in self.p), Fraction(0))

    @property
    def largest(self) -> Fraction:
        """‖p‖_∞."""
        return max(abs(x) for x in self.p)

    @property
    def clip(self) -> Fraction:
        """The theorem's ρ = R / (2 √d)."""
        return self.radius / (2 * self.root)

    def clipped(self, rho: Fraction) -> tuple[Fraction, ...]:
        """c_j = clip(u_j / σ_j, ρ)."""
        return tuple(max(-rho, min(rho, a / s)) for a, s in zip(self.u, self.sigma, strict=True))

    def s(self, rho: Fraction) -> Fraction:
        """S = Σ_j min{ρ |u_j|, u_j² / σ_j}."""
        return sum((min(rho * abs(a), a * a / b) for a, b in zip(self.u, self.sigma, strict=True)), Fraction(0))

    def decrease(self, rho: Fraction, lr: Fraction = Fraction(1, 2)) -> Fraction:
        """L(θ) − L(θ⁺)."""
        return self.gap - self.loss([x - lr * c for x, c in zip(self.p, self.clipped(rho), strict=True)])

    def certify(self) -> bool:
        r"""Whether Assumption 2 holds with the radius, exactly.

        Without ψ: each φ_j'' stays within a factor 2 over R. With ψ and φ_j'' = σ_j ≥ m: |1ᵀδ| ≤ √n ‖δ‖ ≤ q R for
        n = len(p) and an integer q ≥ √n, and H(θ') ⪯ 2 H(θ) follows from n (ψ''(s') − 2 ψ''(s)) ≤ m, since 11ᵀ ⪯ n I.
        """
        if self.crossing is None:
            return all(f.certifies(self.radius) for f in self.functions)
        n = len(self.p)
        if any(len(set(f.curvatures)) > 1 for f in self.functions) or self.root**2 < n:
            return False
        if self.crossing.curvature(sum(self.p, Fraction(0))) != 0:
            return False
        base = min(self.sigma) / n
        lifted = Piecewise(self.crossing.knots, tuple(c + base for c in self.crossing.curvatures))
        q = next(k for k in range(1, n + 1) if k * k >= n)
        return lifted.certifies(q * self.radius)


#: The smallest of these is certified for everything drawn below.
RADII = tuple(Fraction(2) ** -k for k in range(-4, 19))


def largest_radius(certifies: Callable[[Fraction], bool]) -> Fraction:
    """The largest of ``RADII`` that is certified."""
    return RADII[bisect_left(RADII, True, key=certifies)]


_POWERS = tuple(Fraction(2) ** k for k in range(-4, 5))
_LENGTHS = (Fraction(1, 64), Fraction(1, 8), Fraction(1), Fraction(8))
_halving = cache(halving)


def function_at_point(rng: Random) -> tuple[Piecewise, Fraction]:
    """Quadratics; halvings, far out; one steep ramp just inside the point; random walks of the curvature."""
    kind = rng.choice((0, 1, 2, 2, 3))
    if kind == 0:
        return quadratic(rng.choice(_POWERS)), rng.choice(_LENGTHS)
    if kind == 1:
        depth = rng.choice((1, 16, 16))
        f = _halving(depth, rng.choice((Fraction(1), Fraction(1, 64), Fraction(1, 64))))
        return f, rng.choice((Fraction(1, 2), Fraction(1), Fraction(8), Fraction(8))) * depth
    if kind == 2:
        start, ramp = rng.choice((Fraction(1, 8), Fraction(1))), Fraction(1, 64)
        outside = rng.choice((Fraction(1, 2), Fraction(1, 2), Fraction(2), Fraction(16)))
        return even([0, start, start * (1 + ramp)], [1, 1, outside]), start * (1 + ramp)
    sides = []
    for sign in (-1, 1):
        steps = [(rng.choice(_LENGTHS), rng.choice(_POWERS)) for _ in range(rng.randint(1, 3))]
        positions = accumulate(sign * length for length, _ in steps)
        sides.append([(x, value) for x, (_, value) in zip(positions, steps, strict=True)])
    knots = [*reversed(sides[0]), (Fraction(0), rng.choice(_POWERS)), *sides[1]]
    f = Piecewise(*(tuple(column) for column in zip(*knots, strict=True)))
    return f, rng.choice([x for x in f.knots if x]) * rng.choice((Fraction(1), Fraction(3, 2)))


def fixed_layer(rng: Random) -> ExactLayer:
    """A layer with one eigenbasis everywhere."""
    functions, p = zip(*(function_at_point(rng) for _ in range(rng.choice((1, 1, 2, 3)))), strict=True)
    radius = largest_radius(lambda r: all(f.certifies(r) for f in functions))
    return ExactLayer(functions, p, radius, rng.choice((1, 2, 10) if len(p) == 1 else (2, 10)))


def turning_layer(rng: Random) -> ExactLayer:
    """A layer whose eigenbasis turns around the point."""
    n = rng.randint(2, 4)
    s_flat, peak = rng.choice((Fraction(1), Fraction(4))), rng.choice(_POWERS)
    width = rng.choice((Fraction(1, 8), Fraction(1, 2), Fraction(1)))
    crossing = even([0, s_flat * (1 - width / 2), s_flat], [peak, peak, 0])
    p = [Fraction(rng.randint(-8, 8), 4) for _ in range(n - 1)]
    p.append(s_flat * rng.choice((1, 2, -1)) - sum(p, Fraction(0)))
    functions = tuple(quadratic(s) for s in rng.sample(_POWERS, n))
    layer = ExactLayer(functions, tuple(p), Fraction(1), rng.choice((2, 3)), crossing)
    return replace(layer, radius=largest_radius(lambda r: replace(layer, radius=r).certify()))


def exact_layer(rng: Random) -> ExactLayer:
    """Any of the above; the radius is the largest power of two that is certified, exactly."""
    return rng.choice((fixed_layer, fixed_layer, turning_layer))(rng)
