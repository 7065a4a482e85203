r"""Exact instances on which the update returns to its start for ever; derivations in ``proofs``.

They show where its hypotheses end: a clip above 10 R/√d (``lower_bound.md``, 3), layers updated at once with η above
1/ν (``coupled_theorem.md``, "How tight").
"""

from __future__ import annotations

from fractions import Fraction

from theory.losses.exact_coupled import ExactCoupled
from theory.losses.exact_layers import ExactLayer
from theory.losses.piecewise import Piecewise, even, quadratic


def _crossing(a: Fraction, ramp: Fraction, root: int) -> Piecewise:
    """ψ of s = 1ᵀp/√d as a function of 1ᵀp: ψ'' = h − 1, h = 8, 4, 2 on |s| up to a − 2, a − 1, a."""
    knots = [Fraction(0), a - 2 - ramp, a - 2, a - 1 - ramp, a - 1, a - ramp, a]
    return even([root * k for k in knots], [Fraction(h - 1, root**2) for h in (8, 8, 4, 4, 2, 2, 1)])


def clip_cycle(k: Fraction, root: int) -> tuple[ExactLayer, Fraction]:
    """A layer of dimension d = root² with R = 1, at a point of its cycle, and the clip ρ = k R / √d, k > 10."""
    if not k > 10:
        raise ValueError(f"k must exceed 10, got {k}; below, the proof says nothing")
    a, d = Fraction(k) / 4, root**2
    crossing = _crossing(a, min((k - 10) / 7, Fraction(1, 4)), root)
    spread = Fraction(2 * (k - 10), 3 * k)
    sigmas = [1 + spread * j / max(1, d - 1) for j in range(d)]
    return ExactLayer(tuple(map(quadratic, sigmas)), (a / root,) * d, Fraction(1), root, crossing), k / root


def newton_cycle(root: int) -> ExactLayer:
    """A layer with R = 1 at a point of a cycle without clipping, for every ρ ≥ 10.7 R / √d."""
    crossing = _crossing(Fraction(13, 5), Fraction(1, 20), root)
    return ExactLayer((quadratic(1),) * root**2, (Fraction(107, 40) / root,) * root**2, Fraction(1), root, crossing)


def _scalars(base: Fraction, crossing: Piecewise, p: Fraction, n: int, radius: Fraction) -> ExactCoupled:
    return ExactCoupled((base,), (crossing,), ((p,),) * n, (abs(p),) * n, radius, 1)


def three_layers_cycle() -> ExactCoupled:
    """Three scalar layers, updated at once with η = 1/2; ν = 5/2 at most, every radius is admitted."""
    half = Fraction(1, 2)
    return _scalars(half, even([0, 2, 3], [3 * half, 3 * half, half]), Fraction(1), 3, Fraction(8))


def five_layers_cycle() -> ExactCoupled:
    """The quadratic ½ θᵀ(¼ I + ¾ 11ᵀ)θ of five scalar layers, updated at once with η = 1/2: ν = 4."""
    return _scalars(Fraction(1, 4), quadratic(Fraction(3, 4)), Fraction(1), 5, Fraction(8))
