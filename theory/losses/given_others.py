r"""One scalar layer x beside another, y, that is kept: against L(θ_i) read as the loss given the other layers.

L(x, y) = Σ_k w_k φ_k(a_k x + b_k y) with exact φ_k, minimal at 0; gap and μ are those of the whole loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from theory.ledger.claim import Instance
from theory.losses.piecewise import Piecewise, quadratic

Term = tuple[Fraction | int, Piecewise, int, int]
SQUARE = quadratic()

#: ½(x² + y²), and ½(x² + (8/5)xy + y²).
SEPARATE: tuple[Term, ...] = ((1, SQUARE, 1, 0), (1, SQUARE, 0, 1))
COUPLED: tuple[Term, ...] = (
    (Fraction(4, 5), SQUARE, 1, 1),
    (Fraction(1, 5), SQUARE, 1, 0),
    (Fraction(1, 5), SQUARE, 0, 1),
)


@dataclass(frozen=True)
class Given:
    """What the lemmas compare: L − min L, ∂L/∂x, ∂²L/∂x², and ∂²L/∂x² at the minimizer."""

    gap: Fraction
    slope: Fraction
    curvature: Fraction
    mu: Fraction

    @property
    def form(self) -> Fraction:
        """∇Lᵀ(∇²L)⁻¹∇L of the layer."""
        return self.slope**2 / self.curvature


def place(terms: tuple[Term, ...], x: Fraction | int, y: Fraction | int) -> dict[str, Any]:
    """An instance: the loss, where x and y stand, the radius 1."""
    return {"terms": terms, "x": Fraction(x), "y": Fraction(y), "R": 1}


def given(at: Instance) -> Given:
    """The layer x at an instance."""
    found = [(w, phi, a, a * at["x"] + b * at["y"]) for w, phi, a, b in at["terms"]]
    return Given(
        gap=sum((w * phi.value(s) for w, phi, _, s in found), Fraction(0)),
        slope=sum((w * a * phi.slope(s) for w, phi, a, s in found), Fraction(0)),
        curvature=sum((w * a * a * phi.curvature(s) for w, phi, a, s in found), Fraction(0)),
        mu=sum((w * a * a * phi.curvature(Fraction(0)) for w, phi, a, _ in found), Fraction(0)),
    )


def assumptions(at: Instance) -> dict[str, bool]:
    """Assumption 1 for L, and Assumption 2 for x with radius R, whatever y is: the sums inherit it."""
    directions = {(a, b) for _, _, a, b in at["terms"]}
    return {
        "L strictly convex": all(w > 0 and min(phi.curvatures) > 0 for w, phi, _, _ in at["terms"])
        and any(a * d != b * c for a, b in directions for c, d in directions),
        "Assumption 2 with radius R": all(phi.certifies(abs(a) * at["R"]) for _, phi, a, _ in at["terms"] if a),
    }
