"""L7: does the loss gap bound the Newton step near the minimizer?"""

from __future__ import annotations

from fractions import Fraction

import sympy
from flint import fmpq

from theory import ledger
from theory.ledger.constants import constant
from theory.ledger.steps import by_hand, identity
from theory.losses.instances import assumptions, gap_at_most, layer, parabola
from theory.losses.layers import Layer
from theory.losses.strategies import either


def _newton_and_gap(at: ledger.Instance) -> ledger.Sides:
    """‖H⁻¹∇L‖ and 8 (L − min L)/μ, at θ > 0 with d = 1."""
    here = layer(at)
    _, slope, curvature = here.parts[0]
    return slope / curvature, 8 * here.gap / here.mu


def _squared(here: Layer, eight: fmpq) -> ledger.Sides:
    return here.mu * here.newton2, eight * here.gap


def _near(at: ledger.Instance) -> dict[str, bool]:
    return {**assumptions(at), "L − min L ≤ μR²/16": gap_at_most(at, Fraction(1, 16))}


n, gap, mu, q = sympy.symbols("n G mu q", positive=True)
EIGHT = constant("eight")

CLAIMS = (
    ledger.Claim(
        id="L7",
        place="Lemma 7 (norm bound on inverse Hessian and gradient product)",
        statement=r"If $L(\theta_i) - \min L \le \frac1{16}\mu_iR_i^2$ or $\|\nabla L(\theta_i)\|_2 \le "
        r"\frac14\mu_iR_i$, then $\|\nabla^2L^{-1}\nabla L\|_2 \le \frac{8(L - \min L)}{\mu_i}$ at $\theta_i$.",
        expected=ledger.Verdict.HOLDS_AFTER_REPAIR,
        answer="False (a length against a squared length); the left side squared is meant, then «eight» is sharp.",
        constants={"eight": ledger.Constant(fmpq(8), fmpq(39, 5))},
        evidence=(
            ledger.Witness(
                text=r"$L = \frac12\theta^2$, $\mu = R = 1$, $\theta = \frac18$: gap $\frac1{128} \le \frac1{16}$; the "
                r"Newton step is $\frac18$, the right side $8\cdot\frac1{128} = \frac1{16}$.",
                instance=parabola(1, Fraction(1, 8), R=1),
                sides=_newton_and_gap,
                recorded=(Fraction(1, 8), Fraction(1, 16)),
                harmless=parabola(1, Fraction(1, 4), R=2),
                hypotheses=_near,
            ),
            ledger.Units(
                text=r"A Newton step is a length in $\theta$; the gap over $\mu$ is a length squared.",
                lhs=n,
                rhs=8 * gap / mu,
                units={n: {"θ": 1}, gap: {"loss": 1}, mu: {"loss": 1, "θ": -2}},
                recorded=({"θ": 1}, {"θ": 2}),
                mended=sympy.sqrt(8 * gap / mu),
            ),
            ledger.Proof(
                text=r"$\theta$ is within $R$ of $\theta^*$ (L2, L3), so $H \succeq \frac\mu2I$ and $\|H^{-1}g\|^2 = "
                r"(H^{-1/2}g)^TH^{-1}(H^{-1/2}g) \le \frac2\mu g^TH^{-1}g \le \frac8\mu(L-\min L)$ by L5.",
                target=ledger.Target.REPAIRED,
                steps=(
                    by_hand(r"$H^{-1} \preceq \frac2\mu I$."),
                    identity(r"$\frac2\mu\cdot4G = \frac{«eight»G}\mu$.", 2 / mu * 4 * gap, EIGHT * gap / mu),
                    by_hand(r"Within $R$, and $g^TH^{-1}g \le 4G$.", "L2", "L3", "L5"),
                ),
            ),
            ledger.Search(
                text="Layers of all families where one of the two conditions holds, mostly just holds.",
                target=ledger.Target.REPAIRED,
                strategy=either(fmpq(1, 16), fmpq(1, 4)),
                sides=_squared,
            ),
        ),
        repair=r"For one layer, under the same conditions, $\|\nabla^2L^{-1}\nabla L\|_2^2 \le \frac{«eight»(L-\min "
        r"L)}{\mu_i}$.",
        printed_proof=ledger.PrintedProof(
            lines=(
                ledger.Line(
                    text=r"$g^TH^{-1}g = \|H^{-1}g\|^2$.",
                    kindest=ledger.Witness(
                        text=r"$L = \theta^2$, $\theta = 1$: $g = H = 2$; $\frac42 = 2$ against 1.",
                        instance=parabola(2, 1, R=4),
                        sides=lambda at: (layer(at).form, layer(at).newton2),
                        recorded=(2, 1),
                        harmless=parabola(1, 1, R=4),
                        relation="==",
                        hypotheses=_near,
                    ),
                ),
                ledger.Line(
                    text=r"$\|H^{-1}g\|^2 \le \frac2\mu\|g\|^2 \le \frac{4(L-\min L)}\mu$.",
                    kindest=ledger.Witness(
                        text=r"$L = 2\theta^2$, $\theta = 1$: $\mu = g = 4$; $\frac24\cdot16 = 8$ against "
                        r"$\frac{4\cdot2}4 = 2$.",
                        instance=parabola(4, 1, R=4),
                        sides=lambda at: (2 * layer(at).gradient2 / layer(at).mu, 4 * layer(at).gap / layer(at).mu),
                        recorded=(8, 2),
                        harmless=parabola(Fraction(1, 2), 1, R=4),
                        hypotheses=_near,
                    ),
                ),
                ledger.Line(
                    text=r"“And finally” the square on the left is dropped and 4 becomes 8: $x^2 \le \frac{4G}\mu$ "
                    r"does not give $x \le \frac{8G}\mu$.",
                    gap=ledger.Witness(
                        text=r"$x = \frac14$, $G/\mu = \frac1{64}$: $\frac1{16} \le \frac1{16}$, but $\frac14 > "
                        r"\frac18$.",
                        instance={"x": Fraction(1, 4), "ratio": Fraction(1, 64)},
                        sides=lambda at: (at["x"], 8 * at["ratio"]),
                        recorded=(Fraction(1, 4), Fraction(1, 8)),
                        harmless={"x": Fraction(1), "ratio": Fraction(1, 4)},
                        hypotheses=lambda at: {"x² ≤ 4G/μ": at["x"] ** 2 <= 4 * at["ratio"]},
                    ),
                ),
            ),
            expected=ledger.ProofVerdict.WRONG,
        ),
    ),
)
