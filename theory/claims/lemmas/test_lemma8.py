"""L8: is the Newton decrement between one and four times the loss gap where the Newton step is short?"""

from __future__ import annotations

from fractions import Fraction

import sympy
from flint import fmpq
from sympy import Rational

from theory import ledger
from theory.ledger.constants import constant
from theory.ledger.steps import by_hand, identity
from theory.losses import given_others
from theory.losses.functions import as_fmpq
from theory.losses.instances import assumptions, layer, parabola, ramps
from theory.losses.layers import Layer
from theory.losses.strategies import met, short_newton


def _lower(here: Layer, one: fmpq) -> ledger.Sides:
    return here.gap, one * here.form


def _upper(here: Layer, four: fmpq) -> ledger.Sides:
    return here.form, four * here.gap


def _given_y(at: ledger.Instance) -> ledger.Sides:
    here = given_others.given(at)
    return here.gap, here.form


def _short_given_y(at: ledger.Instance) -> dict[str, bool]:
    here = given_others.given(at)
    return {**given_others.assumptions(at), "‖H⁻¹∇L‖ ≤ R/2": abs(here.slope / here.curvature) <= Fraction(at["R"], 2)}


def _short(at: ledger.Instance) -> dict[str, bool]:
    here = layer(at)
    return {**assumptions(at), "‖H⁻¹∇L‖ ≤ R/2": bool(4 * here.newton2 <= as_fmpq(at["R"]) ** 2)}


def _norms(at: ledger.Instance) -> ledger.Sides:
    """‖H⁻¹‖₂ ‖g‖ and 2‖H⁻¹g‖ for H = diag(1, h), h ≥ 1, g = (0, 1)."""
    return Rational(1), 2 / at["h"]


def _reversed(at: ledger.Instance) -> ledger.Sides:
    """lower · H⁻¹ ⪯ upper · H⁻¹ for H = 1."""
    return at["lower"], at["upper"]


t, q = sympy.symbols("t q", positive=True)
ONE, FOUR = constant("one"), constant("four")

CLAIMS = (
    ledger.Claim(
        id="L8",
        place="Lemma 8 (two-sided bound)",
        statement=r"If $\|\nabla^2L(\theta_i)^{-1}\nabla L(\theta_i)\|_2 \le \frac R2$, then $L - \min L \le \nabla "
        r"L^T(\nabla^2L)^{-1}\nabla L \le 4(L - \min L)$ at $\theta_i$.",
        expected=ledger.Verdict.HOLDS_AFTER_REPAIR,
        answer="False given other layers that are not at their optimum; for one layer true, both constants sharp; the "
        "printed proof passes a false ½.",
        constants={"one": ledger.Constant(fmpq(1), fmpq(97, 100)), "four": ledger.Constant(fmpq(4), fmpq(39, 10))},
        evidence=(
            ledger.Witness(
                text=r"$L = \frac12(x^2 + y^2)$, layer $x$, $R = 1$, given $y = \frac12$: at $x = 0$ the gradient is "
                r"0, the gap $\frac18$.",
                instance=given_others.place(given_others.SEPARATE, 0, Fraction(1, 2)),
                sides=_given_y,
                recorded=(Fraction(1, 8), 0),
                harmless=given_others.place(given_others.SEPARATE, Fraction(1, 2), 0),
                hypotheses=_short_given_y,
            ),
            ledger.Proof(
                text=r"Along the flow of L4 (repaired) $\|\dot\theta\| = \|H_t^{-1}g\| = \|(H_t^{-1}H)H^{-1}g\| \le "
                r"2\cdot\frac R2 = R$ as long as $\|\theta(t)-\theta\| \le R$, which is the typeset form of Assumption "
                r"2; so $\|\theta(t)-\theta\| \le tR \le R$ up to $t = 1$. On the path $\frac12H^{-1} \preceq H_t^{-1} "
                r"\preceq 2H^{-1}$, and $L - \min L = \int_0^1(1-t)g^TH_t^{-1}g\,dt$ is between $\frac14$ and 1 times "
                r"$g^TH^{-1}g$.",
                target=ledger.Target.REPAIRED,
                steps=(
                    by_hand(
                        r"Continuation: the set of $t \le 1$ with $\|\theta(s)-\theta\| \le sR$ up to $t$ is closed "
                        r"and, if its end is below 1, the bound there is below $R$, so it goes on."
                    ),
                    identity(r"$\int_0^1(1-t)\,2q\,dt = q$.", sympy.integrate((1 - t) * 2 * q, (t, 0, 1)), ONE * q),
                    identity(
                        r"$\int_0^1(1-t)\frac q2\,dt = \frac q4$.",
                        sympy.integrate((1 - t) * q / 2, (t, 0, 1)),
                        q / FOUR,
                    ),
                    by_hand("The flow.", "L4"),
                ),
            ),
            ledger.Search(
                text=r"Lower inequality: layers of all families with $\|H^{-1}g\| \le \frac R2$, mostly with equality.",
                strategy=met(short_newton(fmpq(1, 2))),
                target=ledger.Target.REPAIRED,
                sides=_lower,
            ),
            ledger.Search(
                text="Upper inequality, on the same layers.",
                strategy=met(short_newton(fmpq(1, 2))),
                target=ledger.Target.REPAIRED,
                sides=_upper,
            ),
        ),
        repair=r"Let the other layers stand at their optimum, so that $L(\theta_i)$ is one layer's loss, and let "
        r"Assumption 2 hold as typeset. Then $L - \min L \le \nabla L^T(\nabla^2L)^{-1}\nabla L \le «four»(L - \min "
        r"L)$ under the same condition.",
        printed_proof=ledger.PrintedProof(
            lines=(
                ledger.Line(
                    text=r"$\int\|H_t^{-1}\|_2\|\nabla L\|_2 \le 2\int\|H_t^{-1}\nabla L\|_2$: a product of norms is "
                    r"bounded by the norm of the product.",
                    kindest=ledger.Witness(
                        text=r"$H = \mathrm{diag}(1, 9)$, $g = (0, 1)$: $1\cdot1$ against $\frac29$.",
                        instance={"h": Rational(9)},
                        sides=_norms,
                        recorded=(1, Rational(2, 9)),
                        harmless={"h": Rational(2)},
                    ),
                ),
                ledger.Line(
                    text=r"$2H^{-1} \preceq H_t^{-1} \preceq \frac12H^{-1}$: the two constants are interchanged.",
                    literal=ledger.Witness(
                        text=r"$H = 1$: $2 \le \frac12$.",
                        instance={"lower": Rational(2), "upper": Rational(1, 2)},
                        sides=_reversed,
                        recorded=(2, Rational(1, 2)),
                        harmless={"lower": Rational(1, 2), "upper": Rational(2)},
                    ),
                ),
                ledger.Line(
                    text=r"$L - \min L = \int(1-t)g^TH^{-1}g\,dt = \frac12g^TH^{-1}g$ with $H$ at the start in place "
                    r"of $H_t$, so “$L - \min L \le \frac12g^TH^{-1}g$”.",
                    kindest=ledger.Witness(
                        text=r"$L'' = \frac12$ up to $\frac12$, rising to 1 at $\theta = 1$: gap $\frac14 + \frac1{48} "
                        r"= \frac{13}{48}$, gradient $\frac12+\frac18 = \frac58$, and $\frac12\cdot\frac{25}{64} = "
                        r"\frac{25}{128}$.",
                        instance=ramps({Fraction(1, 2): Fraction(1, 2), 1: 1}, 1, R=2),
                        sides=lambda at: (layer(at).gap, layer(at).form / 2),
                        recorded=(Fraction(13, 48), Fraction(25, 128)),
                        harmless=parabola(1, 1, R=2),
                        hypotheses=_short,
                    ),
                ),
            ),
            expected=ledger.ProofVerdict.WRONG,
        ),
        note=r"$R$ is $R_i$. In the Loewner form Assumption 2 does not bound $\|H_t^{-1}g\|$ by $2\|H^{-1}g\|$ (see "
        r"A2), and this proof fails; with $\|\theta-\theta^*\| \le R$ as the hypothesis the lower inequality holds in "
        r"the Loewner form too (L9).",
    ),
)
