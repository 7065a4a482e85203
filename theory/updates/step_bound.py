r"""A true bound on the steps of the theorem's update (T-maxd), for the claims that use it.

For one layer of a separable loss with dimension d, relative gap g = G0/(μR²) and relative target e = ε/(μR²):
T ≤ far·√d·g + root·√d + ln⁺(1/(4de))/ln(1/rate) + 3.
"""

from __future__ import annotations

from typing import Any

import sympy
from flint import acb, arb, fmpq

from theory.ledger.claim import Constant
from theory.ledger.constants import constant, put
from theory.ledger.exact import enclose

D, G, E = sympy.symbols("d_i g_i e_i", positive=True)

#: Factor of the gap in a step that clips nothing: proved, and past what is attained (9/16).
RATE = Constant(fmpq(3, 4), fmpq(27, 50))
FAR = Constant(fmpq(4), fmpq(15, 4))
ROOT = Constant(fmpq(153, 10), fmpq(5))
#: Three phases, each rounded up.
ROUNDING = 3

STEPS = (
    constant("far") * sympy.sqrt(D) * G
    + constant("root") * sympy.sqrt(D)
    + sympy.Max(0, sympy.log(1 / (4 * D * E))) / sympy.log(1 / sympy.Rational(int(RATE.claimed.p), int(RATE.claimed.q)))
)


def bound(steps: sympy.Expr, d: Any, g: Any, e: Any) -> arb:
    """The formula at a layer, and the rounding."""
    return enclose(steps, {D: d, G: g, E: e}) + ROUNDING


#: The formula with the constants that are proved.
PROVED = put(STEPS, {"far": FAR.claimed, "root": ROOT.claimed})


def at_edge(steps: sympy.Expr, d: int, g: Any) -> sympy.Expr:
    """The formula and the rounding, exactly, for the target μR²/(4d), where the logarithm is 0."""
    return sympy.simplify(steps.subs({D: d, G: g, E: sympy.Rational(1, 4 * d)})) + ROUNDING


def growth_rate_constant() -> arb:
    r"""c = ∫₁^∞ x dlnE(x) − 1 with E(x) = Γ(x) − Γ(x−1), from above.

    On (n − 1, n], x = n − 1 + y: E = 1 − (3/2)2^(1−n) + 2^(1−n)y − 2^(−1−n)y². Beyond n = 80, E ≥ ½ and
    E' ≤ 2^(1−n), so the rest is below Σ 2n·2^(1−n) < 2^(−70).
    """

    def term(n: int) -> arb:
        unit = arb(2) ** (1 - n)

        def integrand(y: acb, _: object) -> acb:
            value = 1 - unit * 3 / 2 + unit * y - unit * y**2 / 4
            return (n - 1 + y) * (unit - unit * y / 2) / value

        return acb.integral(integrand, 0, 1).real

    return sum((term(n) for n in range(2, 81)), arb(0)) + arb(2) ** -70 - 1
