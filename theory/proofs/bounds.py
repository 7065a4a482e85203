r"""The bounds that ``theory/proofs`` proves, as functions of plain numbers; each names its page.

Symbols: d a layer's dimension, mu the smallest eigenvalue of its Hessian at the minimizer, R the radius of
Assumption 2 (Loewner form), gap = L − min L, g = gap / (mu R²), D the distance to the minimizer. The clip is
ρ = R / (2 √d) and η = ½ wherever a bound does not take them as arguments.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

#: Steps for a factor e of the gap when nothing is clipped: a step multiplies it by at most 3/4.
PER_LOG = 1.0 / math.log(4.0 / 3.0)


@dataclass(frozen=True)
class LayerStart:
    """What the step bounds know of a layer: dimension, mu, R, the gap at the start, the target of its gap."""

    dimension: int
    mu: float
    radius: float
    gap: float
    target: float

    @property
    def relative_gap(self) -> float:
        """g = gap / (mu R²), a pure number."""
        return self.gap / (self.mu * self.radius**2)


def log_plus(x: float) -> float:
    """ln⁺ x = max(0, ln x)."""
    return math.log(x) if x > 1 else 0.0


def growth(x: float) -> float:
    r"""Γ(x), the least possible gap / (mu R²) at distance x R (``gap_lemma.md``): Γ(0) = Γ'(0) = 0, Γ'' = 2^(−⌈x⌉)."""
    n = math.floor(x)
    at_n = n - 1.5 * (1.0 - 2.0**-n)
    return at_n + (1.0 - 2.0**-n) * (x - n) + 2.0 ** -(n + 2) * (x - n) ** 2


def far_phase(g: float) -> float:
    r"""A(g): steps from gap g μR² to a quarter of μR², in units of the N of ``far_phase.md``."""
    return min(4.0 * g - 1.0, g + 1.81) if g > 0.25 else 0.0


def far_fall(g: float) -> float:
    r"""e(g) = E(x_g), x_g E(x_g) = g, for g ≥ ¼ (``far_phase.md``), by bisection."""
    low, high = 1.0, 4.0 * g + 2.0
    for _ in range(80):
        x = (low + high) / 2.0
        low, high = (x, high) if x * (growth(x) - growth(x - 1.0)) < g else (low, x)
    return 2.0 * g / (low + high)


def separable_bound(layers: Iterable[LayerStart]) -> float:
    """The separable theorem as first conjectured (``separable_theorem.md``, Theorem 1)."""
    return 3.0 + max(
        32.0 * math.sqrt(a.dimension) * a.relative_gap
        + 16.0 * math.sqrt(a.dimension)
        + PER_LOG * log_plus(a.mu * a.radius**2 / (16.0 * a.dimension * a.target))
        for a in layers
    )


def sharp_separable_bound(layers: Iterable[LayerStart]) -> float:
    """The sharper separable theorem (``separable_theorem.md``, Theorem 2); the leading constant 4 is exact."""
    return 3.0 + max(_sharp(a) for a in layers)


def _sharp(a: LayerStart) -> float:
    g, root = a.relative_gap, math.sqrt(a.dimension)
    far = 4.0 * root * far_phase(g)
    middle = max(0.0, 8.0 * root * min(1.0, 2.0 * math.sqrt(g)) - 8.0)
    near = PER_LOG * log_plus(min(a.gap, a.mu * a.radius**2 / (4.0 * a.dimension)) / a.target)
    return far + middle + near


def coupled_bound(nu: float, kappa: float, r: float, distance_in_clips: float, gap: float, target: float) -> int:
    """The coupled theorem with its missing rounding (``coupled_theorem.md``, Theorem 1).

    Args:
        nu: Upper bound of the largest eigenvalue of M^{-1/2} H M^{-1/2} over the sublevel set of the start.
        kappa: Lower bound of the smallest one.
        r: Lower bound of min(1, min_i R_i / D_i) over the sublevel set.
        distance_in_clips: Upper bound of max_i D_i / ρ_i over the sublevel set.
        gap: L(θ_0) − min L.
        target: The gap wanted.
    """
    return max(0, math.ceil(4.0 * nu * max(1.0 / (kappa * r), distance_in_clips) * log_plus(gap / target)))


def coupled_phase_bound(
    nu: float,
    kappa: float,
    dimensions: Sequence[int],
    mus: Sequence[float],
    radii: Sequence[float],
    gap: float,
    target: float,
) -> float:
    """The coupled theorem without distances: the logarithm leaves √d (``coupled_theorem.md``, Theorem 2)."""
    stiffness = kappa * min(mu * radius**2 for mu, radius in zip(mus, radii, strict=True))
    root = math.sqrt(max(dimensions))
    near = min(mu * radius**2 / (16.0 * d * kappa) for d, mu, radius in zip(dimensions, mus, radii, strict=True))
    return (
        4.0 * nu * max(1.0 / kappa, 2.0 * root) * far_phase(gap / stiffness)
        + 16.0 * nu * root
        + log_plus(near / target) / -math.log1p(-kappa / (4.0 * nu))
        + 3.0
    )


def trust_region_bound(
    nu: float, kappa: float, mus: Sequence[float], radii: Sequence[float], gap: float, target: float
) -> int:
    """Steps in balls of radius R_i, all layers at once (``trust_region.md``, Theorem 1): no dimension occurs."""
    stiffness = kappa * min(mu * radius**2 for mu, radius in zip(mus, radii, strict=True))
    far = 4.0 * nu / kappa * far_phase(gap / stiffness)
    near = log_plus(min(gap, stiffness / 4.0) / target) / -math.log1p(-kappa / (4.0 * nu))
    return math.ceil(far) + math.ceil(near)


def scaled_newton_bound(layers: Iterable[LayerStart]) -> int:
    """The Newton step scaled to length R_i, one eigenbasis a layer, separable (``trust_region.md``, Theorem 2)."""
    return max(
        math.ceil(max(0.0, 16.0 * a.relative_gap - 4.0))
        + math.ceil(PER_LOG * log_plus(min(a.gap, a.mu * a.radius**2 / 4.0) / a.target))
        for a in layers
    )


def cyclic_bound(
    num_layers: int, nu: float, kappa: float, r: float, distance_in_clips: float, gap: float, target: float
) -> int:
    """Sweeps of the cyclic order (``sequential_updates.md``)."""
    per_log = 4.0 * max(4.0 / (kappa * r), distance_in_clips) + 16.0 * (num_layers - 1) * nu / (kappa * r)
    return max(0, math.ceil(per_log * log_plus(gap / target)))
