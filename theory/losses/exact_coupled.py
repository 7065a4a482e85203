r"""Coupled layers at one point, in exact rationals: what ``proofs/coupled/coupled_theorem.md`` and others speak about.

The loss is Σ_k [ Σ_i b_ik p_ik²/2 + Ψ_k(Σ_i w_i p_ik) ]: n layers (rows i, weights w_i) of as many coordinates as there
are Ψ_k (columns k), every layer coupled to every other. With t_k = Σ_i w_i p_ik, column by column,

    H = diag_i(b_ik) + Ψ_k''(t_k) w wᵀ,    H_ii = diag_k(b_ik + w_i² Ψ_k''),    β_ik = b_ik/(b_ik + w_i² Ψ_k''),

and M^{-1/2} H M^{-1/2} is diag_i(β_ik) + v vᵀ with v_i² = 1 − β_ik. So its spectrum lies between min_i β_ik and
max_i β_ik + Σ_i (1 − β_ik); both are attained where all layers are alike, and both are monotone in Ψ_k''.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from random import Random

import numpy as np

from theory.losses.exact_layers import function_at_point, largest_radius
from theory.losses.piecewise import Piecewise
from theory.updates.clipped_newton import Array, Evaluation, Problem

Point = tuple[tuple[Fraction, ...], ...]


@dataclass(frozen=True)
class ExactCoupled:
    """n layers, a point, the radii of the joint Assumption 2.

    Attributes:
        bases: b_ik > 0, a tuple for each layer.
        weights: w_i > 0.
        crossings: Ψ_k.
        p: Displacements, a tuple for each layer; the layers' norms ``distances`` are rational.
        distances: D_i = ‖p_i‖.
        radii: R_i.
        roots: √d_i; d_i = root² is at least the number of columns, further coordinates being at their minimum,
            uncoupled and no less curved than μ_i.
    """

    bases: Point
    weights: tuple[Fraction, ...]
    crossings: tuple[Piecewise, ...]
    p: Point
    distances: tuple[Fraction, ...]
    radii: tuple[Fraction, ...]
    roots: tuple[int, ...]

    @property
    def n(self) -> int:
        """Number of layers."""
        return len(self.p)

    @property
    def clips(self) -> tuple[Fraction, ...]:
        """ρ_i = R_i / (2 √d_i)."""
        return tuple(radius / (2 * root) for radius, root in zip(self.radii, self.roots, strict=True))

    @cached_property
    def _shares(self) -> list[list[Fraction]]:
        """β_ik at the largest Ψ_k'', a list for each column."""
        peaks = [max(f.curvatures) for f in self.crossings]
        columns = zip(zip(*self.bases, strict=True), peaks, strict=True)
        return [[b / (b + w * w * h) for b, w in zip(column, self.weights, strict=True)] for column, h in columns]

    @cached_property
    def nu(self) -> Fraction:
        """An upper bound of ν at all points; exact where all layers are alike."""
        return max(max(column) + sum(1 - beta for beta in column) for column in self._shares)

    @cached_property
    def kappa(self) -> Fraction:
        """A lower bound of κ at all points; exact where all layers are alike."""
        return min(map(min, self._shares))

    @cached_property
    def mus(self) -> tuple[Fraction, ...]:
        """μ_i."""
        zero = self._hessian_blocks([Fraction(0)] * len(self.crossings))
        return tuple(map(min, zero))

    @property
    def inverse_r(self) -> Fraction:
        """1/r = max(1, max_i D_i/R_i)."""
        return max(Fraction(1), *(x / radius for x, radius in zip(self.distances, self.radii, strict=True)))

    @property
    def distance_in_clips(self) -> Fraction:
        """max_i D_i/ρ_i."""
        return max(x / clip for x, clip in zip(self.distances, self.clips, strict=True))

    def totals(self, p: Point) -> list[Fraction]:
        """t_k = Σ_i w_i p_ik."""
        weighted = [[w * x for x in layer] for w, layer in zip(self.weights, p, strict=True)]
        return [sum(column, Fraction(0)) for column in zip(*weighted, strict=True)]

    def loss(self, p: Point) -> Fraction:
        """L − min L."""
        own = (
            b * x * x / 2 for base, layer in zip(self.bases, p, strict=True) for b, x in zip(base, layer, strict=True)
        )
        shared = (f.value(t) for f, t in zip(self.crossings, self.totals(p), strict=True))
        return sum(own, Fraction(0)) + sum(shared, Fraction(0))

    @cached_property
    def gap(self) -> Fraction:
        """G at the point."""
        return self.loss(self.p)

    def gradient(self, p: Point) -> Point:
        """∇L, layer by layer."""
        slopes = [f.slope(t) for f, t in zip(self.crossings, self.totals(p), strict=True)]
        return tuple(
            tuple(b * x + w * s for b, x, s in zip(base, layer, slopes, strict=True))
            for base, w, layer in zip(self.bases, self.weights, p, strict=True)
        )

    def _hessian_blocks(self, totals: Sequence[Fraction]) -> Point:
        curvatures = [f.curvature(t) for f, t in zip(self.crossings, totals, strict=True)]
        return tuple(
            tuple(b + w * w * h for b, h in zip(base, curvatures, strict=True))
            for base, w in zip(self.bases, self.weights, strict=True)
        )

    def sigma(self, p: Point) -> Point:
        """The eigenvalues of each H_ii."""
        return self._hessian_blocks(self.totals(p))

    def layer_sums(self, p: Point) -> list[Fraction]:
        """S_i of each layer at p; S is their sum."""
        return [
            sum((min(rho * abs(u), u * u / s) for u, s in zip(g, sigma, strict=True)), Fraction(0))
            for g, sigma, rho in zip(self.gradient(p), self.sigma(p), self.clips, strict=True)
        ]

    def move(self, p: Point, layers: range, lr: Fraction) -> Point:
        """One update of the given layers, all at once."""
        sigma, gradient = self.sigma(p), self.gradient(p)
        return tuple(
            tuple(x - lr * max(-rho, min(rho, u / s)) for x, u, s in zip(p[i], gradient[i], sigma[i], strict=True))
            if i in layers
            else p[i]
            for i, rho in enumerate(self.clips)
        )

    @cached_property
    def sweep(self) -> list[Point]:
        """The points of one sweep of block updates with η = 1/2, the start included."""
        points = [self.p]
        for i in range(self.n):
            points.append(self.move(points[-1], range(i, i + 1), Fraction(1, 2)))
        return points

    def certify(self) -> bool:
        """Whether the joint Assumption 2 holds, exactly: b_ik + w_i² Ψ_k'' keeps a factor 2 for |t − t'| ≤ Σ w_i R_i.

        In each column the layer with the least b_ik/w_i² decides, for a larger one brings the ratios nearer to 1.
        """
        reach = sum((w * radius for w, radius in zip(self.weights, self.radii, strict=True)), Fraction(0))
        least = [
            min(b / w**2 for b, w in zip(column, self.weights, strict=True)) for column in zip(*self.bases, strict=True)
        ]
        return all(root**2 >= len(self.crossings) for root in self.roots) and all(
            Piecewise(f.knots, tuple(h + c for h in f.curvatures)).certifies(reach)
            for c, f in zip(least, self.crossings, strict=True)
        )

    @property
    def in_floats(self) -> tuple[Problem, Array]:
        """The same loss and point in float64, layer after layer."""
        bases, weights = np.array(self.bases, dtype=float), np.array(self.weights, dtype=float)

        def problem(p: Array) -> Evaluation:
            rows = p.reshape(bases.shape)
            parts = [f.in_floats(t) for f, t in zip(self.crossings, weights @ rows, strict=True)]
            value, slope, curvature = (np.array(column) for column in zip(*parts, strict=True))
            gap = float((bases * rows**2).sum() / 2 + value.sum())
            blocks = list(bases + np.outer(weights**2, curvature))
            return Evaluation(gap, (bases * rows + np.outer(weights, slope)).ravel(), blocks)

        return problem, np.array(self.p, dtype=float).ravel()


_BASES = (Fraction(1, 64), Fraction(1, 64), Fraction(1), Fraction(8))
_SCALES = (Fraction(1, 4), Fraction(1, 2), Fraction(1))


def exact_coupled(rng: Random) -> ExactCoupled:
    """Two or three layers of one or two coordinates; quadratics, halvings, steep ramps, random walks as couplings.

    In half the cases the layers are alike, and in most of these Σ_i p_i stands at a knot: the coupling at its
    strongest. Else bases, weights, radii and dimensions differ from layer to layer.
    """
    n, columns = rng.choice((2, 3)), rng.choice((1, 1, 2))
    crossings, totals = zip(*(function_at_point(rng) for _ in range(columns)), strict=True)
    alike = rng.random() < 1 / 2
    base = tuple(rng.choice(_BASES) for _ in range(columns))
    scales = [Fraction(1) if alike else rng.choice(_SCALES) for _ in range(3 * n)]
    weights = tuple(scales[:n])
    if alike or rng.random() < 1 / 2:  # the same w_i p_i in every layer
        sizes = [totals[0] / (n * w) * (1 if columns == 1 else Fraction(5, 3)) for w in weights]
    else:
        sizes = [Fraction(rng.choice((-1, 1)) * rng.randint(1, 6), 2) for _ in range(n)]
    unit = (Fraction(1),) if columns == 1 else (Fraction(3, 5), Fraction(4, 5))
    roots = (1, 2, 10) if columns == 1 else (2, 10)
    common = rng.choice(roots)
    draft = ExactCoupled(
        bases=tuple(tuple(scale * b for b in base) for scale in scales[n : 2 * n]),
        weights=weights,
        crossings=crossings,
        p=tuple(tuple(x * e for e in unit) for x in sizes),
        distances=tuple(abs(x) for x in sizes),
        radii=tuple(scales[2 * n :]),
        roots=tuple(common if alike else rng.choice(roots) for _ in range(n)),
    )

    def scaled(factor: Fraction) -> ExactCoupled:
        return replace(draft, radii=tuple(factor * radius for radius in draft.radii))

    return scaled(largest_radius(lambda factor: scaled(factor).certify()))
