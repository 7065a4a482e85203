r"""Exact instances on which the update returns to its start for ever; derivations in ``proofs``.

They show where its hypotheses end: a clip above K_η R/(η√d) (``lower_bound.md``, 3), layers updated at once with η
above 1/ν (``coupled_theorem.md``, "How tight").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from theory.losses.exact_coupled import ExactCoupled
from theory.losses.exact_layers import ExactLayer
from theory.losses.piecewise import Piecewise, even, quadratic


def doublings(eta: Fraction) -> int:
    """m, the least integer with 2^m ≥ 4/η."""
    return next(m for m in range(2, 200) if eta * 2**m >= 4)


def cycle_threshold(eta: Fraction) -> Fraction:
    """K_η = 2 max(a_η, m − ¾): a clip ρ with ηρ√d/R above it cycles; a_η = (2^m (m − 2) + 2)/(2^m − 2/η)."""
    m = doublings(eta)
    return 2 * max((2**m * (m - 2) + 2) / (2**m - 2 / eta), m - Fraction(3, 4))


@dataclass(frozen=True)
class _Valley:
    """½ Σ σ_j θ_j² + ψ(s), s = 1ᵀθ/√d, ψ'' = h − 1, h = 2^m, …, 2 on |s| up to a − m + 1, …, a, and 1 beyond.

    ``delta`` is the length of h's ramps, ``spread`` the range of the distinct σ_j above 1: each spends half of
    (2^m − 2/η)(a − a_η), by which ψ'(a) may fall short.
    """

    eta: Fraction
    a: Fraction
    root: int

    @property
    def _spare(self) -> Fraction:
        m = doublings(self.eta)
        return (2**m - 2 / self.eta) * self.a - 2**m * (m - 2) - 2

    @property
    def delta(self) -> Fraction:
        return min(Fraction(1, 4), self._spare / (2 ** doublings(self.eta) - 1))

    @property
    def spread(self) -> Fraction:
        return min(Fraction(1), self._spare / (2 * (2 / self.eta - 1) * self.a))

    @property
    def slope(self) -> Fraction:
        """ψ'(a)."""
        m = doublings(self.eta)
        return 2**m * (self.a - m + 2) - 2 - self.delta * (2**m - 1) / 2 - self.a

    @property
    def sigmas(self) -> list[Fraction]:
        d = self.root**2
        return [1 + self.spread * Fraction(j, max(1, d - 1)) for j in range(d)]

    def at(self, theta: Sequence[Fraction]) -> ExactLayer:
        """The layer, with radius 1, at a point."""
        m = doublings(self.eta)
        knots, levels = [Fraction(0)], [2**m - 1]
        for k in range(m, 0, -1):
            knots += [self.a - k + 1 - self.delta, self.a - k + 1]
            levels += [2**k - 1, 2 ** (k - 1) - 1]
        d = self.root**2
        crossing = even([self.root * k for k in knots], [Fraction(level, d) for level in levels])
        return ExactLayer(tuple(map(quadratic, self.sigmas)), tuple(theta), Fraction(1), self.root, crossing)


def clip_cycle(k: Fraction, root: int, eta: Fraction) -> tuple[ExactLayer, Fraction]:
    """A layer of dimension d = root² with R = 1 at a point of its cycle, and the clip ρ = k R/(η√d) of all its steps.

    Raises:
        ValueError: If k does not exceed ``cycle_threshold(eta)``.
    """
    if not k > cycle_threshold(eta):
        raise ValueError(f"k must exceed {cycle_threshold(eta)}, got {k}; below, a clipped run may converge")
    valley = _Valley(eta, Fraction(k) / 2, root)
    return valley.at([valley.a / root] * root**2), k / (eta * root)


def newton_cycle(root: int, eta: Fraction) -> tuple[ExactLayer, Fraction]:
    """A layer with R = 1 at a point of a cycle without clipping, and the least k for which no step is clipped."""
    valley = _Valley(eta, cycle_threshold(eta) / 2 + Fraction(1, 10), root)
    b = eta / (2 - eta) * valley.slope
    return valley.at([b / (sigma * root) for sigma in valley.sigmas]), 2 * b


def _scalars(base: Fraction, crossing: Piecewise, p: Fraction, n: int, radius: Fraction) -> ExactCoupled:
    ones = (Fraction(1),) * n
    return ExactCoupled(((base,),) * n, ones, (crossing,), ((p,),) * n, (abs(p),) * n, (radius,) * n, (1,) * n)


def three_layers_cycle() -> ExactCoupled:
    """Three scalar layers, updated at once with η = 1/2; ν = 5/2 at most, every radius is admitted."""
    half = Fraction(1, 2)
    return _scalars(half, even([0, 2, 3], [3 * half, 3 * half, half]), Fraction(1), 3, Fraction(8))


def five_layers_cycle() -> ExactCoupled:
    """The quadratic ½ θᵀ(¼ I + ¾ 11ᵀ)θ of five scalar layers, updated at once with η = 1/2: ν = 4."""
    return _scalars(Fraction(1, 4), quadratic(Fraction(3, 4)), Fraction(1), 5, Fraction(8))
