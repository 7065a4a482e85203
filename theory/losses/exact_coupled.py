r"""Coupled layers at one point, in exact rationals: what ``proofs/coupled_theorem.md`` and its neighbour speak about.

The loss is Σ_k [ b_k/2 Σ_i p_ik² + Ψ_k(Σ_i p_ik) ]: n layers (rows i) of w coordinates (columns k), every layer coupled
to every other. With t_k = Σ_i p_ik the Hessian is, column by column, b_k I + Ψ_k''(t_k) 11ᵀ, so

    H_ii = diag_k(b_k + Ψ_k''),    spectrum of M^{-1/2} H M^{-1/2}:  b/(b + Ψ'')  and  (b + n Ψ'')/(b + Ψ''),

both monotone in Ψ''. Quadratic Ψ_k give coupled quadratics, others give Hessians that change with the point.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from random import Random

from theory.losses.exact_layers import function_at_point, largest_radius
from theory.losses.piecewise import Piecewise

Point = tuple[tuple[Fraction, ...], ...]


@dataclass(frozen=True)
class ExactCoupled:
    """n equal layers, a point, the radius of the joint Assumption 2 (the same for every layer).

    Attributes:
        bases: b_k > 0.
        crossings: Ψ_k.
        p: Displacements, a tuple of w numbers for each layer; the layers' norms ``distances`` are rational.
        distances: D_i = ‖p_i‖.
        radius: R_i = R.
        root: √d_i; d_i = root² ≥ w, further coordinates being at their minimum and uncoupled.
    """

    bases: tuple[Fraction, ...]
    crossings: tuple[Piecewise, ...]
    p: Point
    distances: tuple[Fraction, ...]
    radius: Fraction
    root: int

    @property
    def n(self) -> int:
        """Number of layers."""
        return len(self.p)

    @property
    def clip(self) -> Fraction:
        """ρ_i = R / (2 √d_i)."""
        return self.radius / (2 * self.root)

    @cached_property
    def nu(self) -> Fraction:
        """Supremum of ν over all points."""
        peaks = [max(f.curvatures) for f in self.crossings]
        return max((b + self.n * h) / (b + h) for b, h in zip(self.bases, peaks, strict=True))

    @cached_property
    def kappa(self) -> Fraction:
        """Infimum of κ over all points."""
        peaks = [max(f.curvatures) for f in self.crossings]
        return min(b / (b + h) for b, h in zip(self.bases, peaks, strict=True))

    @property
    def inverse_r(self) -> Fraction:
        """1/r = max(1, max_i D_i / R)."""
        return max(Fraction(1), max(self.distances) / self.radius)

    @property
    def distance_in_clips(self) -> Fraction:
        """max_i D_i / ρ_i."""
        return max(self.distances) / self.clip

    def _totals(self, p: Point) -> list[Fraction]:
        return [sum(column, Fraction(0)) for column in zip(*p, strict=True)]

    def loss(self, p: Point) -> Fraction:
        """L − min L."""
        own = (b * x * x / 2 for layer in p for b, x in zip(self.bases, layer, strict=True))
        shared = (f.value(t) for f, t in zip(self.crossings, self._totals(p), strict=True))
        return sum(own, Fraction(0)) + sum(shared, Fraction(0))

    def gradient(self, p: Point) -> Point:
        """∇L, layer by layer."""
        slopes = [f.slope(t) for f, t in zip(self.crossings, self._totals(p), strict=True)]
        return tuple(tuple(b * x + s for b, x, s in zip(self.bases, layer, slopes, strict=True)) for layer in p)

    def sigma(self, p: Point) -> list[Fraction]:
        """The eigenvalues of H_ii, the same for every layer."""
        return [b + f.curvature(t) for b, f, t in zip(self.bases, self.crossings, self._totals(p), strict=True)]

    def layer_sums(self, p: Point) -> list[Fraction]:
        """S_i of each layer at p; S is their sum."""
        sigma, rho = self.sigma(p), self.clip
        return [
            sum((min(rho * abs(u), u * u / s) for u, s in zip(g, sigma, strict=True)), Fraction(0))
            for g in self.gradient(p)
        ]

    def move(self, p: Point, layers: range, lr: Fraction) -> Point:
        """One update of the given layers, all at once."""
        sigma, rho, gradient = self.sigma(p), self.clip, self.gradient(p)
        return tuple(
            tuple(x - lr * max(-rho, min(rho, u / s)) for x, u, s in zip(p[i], gradient[i], sigma, strict=True))
            if i in layers
            else p[i]
            for i in range(self.n)
        )

    @cached_property
    def sweep(self) -> list[Point]:
        """The points of one sweep of block updates with η = 1/2, the start included."""
        points = [self.p]
        for i in range(self.n):
            points.append(self.move(points[-1], range(i, i + 1), Fraction(1, 2)))
        return points

    def certify(self) -> bool:
        """Whether the joint Assumption 2 holds, exactly: b_k + Ψ_k'' keeps a factor of 2 for |t − t'| ≤ n R."""
        return self.root**2 >= len(self.bases) and all(
            Piecewise(f.knots, tuple(h + b for h in f.curvatures)).certifies(self.n * self.radius)
            for b, f in zip(self.bases, self.crossings, strict=True)
        )


def exact_coupled(rng: Random) -> ExactCoupled:
    """Two or three layers of one or two coordinates; quadratics, halvings, steep ramps, random walks as couplings."""
    n, w = rng.choice((2, 3)), rng.choice((1, 1, 2))
    bases = tuple(rng.choice((Fraction(1, 64), Fraction(1, 64), Fraction(1), Fraction(8))) for _ in range(w))
    crossings, totals = zip(*(function_at_point(rng) for _ in range(w)), strict=True)
    if rng.random() < 1 / 2:  # all layers alike: the coupling at its strongest, Σ_i p_i at a knot
        sizes = [totals[0] / n * (1 if w == 1 else Fraction(5, 3))] * n
    else:
        sizes = [Fraction(rng.choice((-1, 1)) * rng.randint(1, 6), 2) for _ in range(n)]
    unit = (Fraction(1),) if w == 1 else (Fraction(3, 5), Fraction(4, 5))
    p = tuple(tuple(x * e for e in unit) for x in sizes)
    root = 1 if w == 1 and rng.random() < 1 / 2 else rng.choice((2, 10))
    draft = ExactCoupled(bases, crossings, p, tuple(abs(x) for x in sizes), Fraction(1), root)
    return replace(draft, radius=largest_radius(lambda r: replace(draft, radius=r).certify()))
