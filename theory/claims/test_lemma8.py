"""L8: is the Newton decrement between one and four times the loss gap where the Newton step is short?"""

from __future__ import annotations

from fractions import Fraction

import sympy
from flint import fmpq
from sympy import Rational

from theory.ledger.claim import (
    Claim,
    Instance,
    Line,
    PrintedProof,
    Proof,
    ProofVerdict,
    Search,
    Sides,
    Twin,
    Verdict,
    Witness,
)
from theory.ledger.steps import by_hand, identity
from theory.losses.functions import as_fmpq
from theory.losses.instances import assumptions, layer, parabola, ramps
from theory.losses.strategies import met, short_newton


def _lower(factor: fmpq):
    return lambda here: (here.gap, factor * here.form)


def _upper(factor: fmpq):
    return lambda here: (here.form, factor * here.gap)


def _short(at: Instance) -> dict[str, bool]:
    here = layer(at)
    return {**assumptions(at), "‖H⁻¹∇L‖ ≤ R/2": bool(4 * here.newton2 <= as_fmpq(at["R"]) ** 2)}


def _norms(at: Instance) -> Sides:
    """‖H⁻¹‖₂ ‖g‖ and 2‖H⁻¹g‖ for H = diag(1, h), h ≥ 1, g = (0, 1)."""
    return Rational(1), 2 / at["h"]


def _reversed(at: Instance) -> Sides:
    """lower · H⁻¹ ⪯ upper · H⁻¹ for H = 1."""
    return at["lower"], at["upper"]


t, q = sympy.symbols("t q", positive=True)

CLAIMS = (
    Claim(
        id="L8",
        place="Lemma 8 (two-sided bound)",
        statement=r"If $\|\nabla^2L(\theta_i)^{-1}\nabla L(\theta_i)\|_2 \le \frac R2$, then $L - \min L \le \nabla "
        r"L^T(\nabla^2L)^{-1}\nabla L \le 4(L - \min L)$ at $\theta_i$.",
        expected=Verdict.HOLDS,
        answer="True, both constants sharp, with Assumption 2 as typeset; the printed proof arrives at a false ½ on "
        "the way.",
        evidence=(
            Proof(
                text=r"Along the flow of L4 (repaired) $\|\dot\theta\| = \|H_t^{-1}g\| = \|(H_t^{-1}H)H^{-1}g\| \le "
                r"2\cdot\frac R2 = R$ as long as $\|\theta(t)-\theta\| \le R$, which is the typeset form of Assumption "
                r"2; so $\|\theta(t)-\theta\| \le tR \le R$ up to $t = 1$. On the path $\frac12H^{-1} \preceq H_t^{-1} "
                r"\preceq 2H^{-1}$, and $L - \min L = \int_0^1(1-t)g^TH_t^{-1}g\,dt$ is between $\frac14$ and 1 times "
                r"$g^TH^{-1}g$.",
                steps=(
                    by_hand(
                        r"Continuation: the set of $t \le 1$ with $\|\theta(s)-\theta\| \le sR$ up to $t$ is closed "
                        r"and, if its end is below 1, the bound there is below $R$, so it goes on."
                    ),
                    identity(r"$\int_0^1(1-t)\,2q\,dt = q$.", sympy.integrate((1 - t) * 2 * q, (t, 0, 1)), q),
                    identity(
                        r"$\int_0^1(1-t)\frac q2\,dt = \frac q4$.", sympy.integrate((1 - t) * q / 2, (t, 0, 1)), q / 4
                    ),
                ),
            ),
            Search(
                text=r"Lower inequality: layers of all families with $\|H^{-1}g\| \le \frac R2$, mostly with equality.",
                strategy=met(short_newton(fmpq(1, 2))),
                sides=_lower(fmpq(1)),
                twin=Twin(r"$\frac{97}{100}$ in place of 1.", sides=_lower(fmpq(97, 100))),
            ),
            Search(
                text="Upper inequality, on the same layers.",
                strategy=met(short_newton(fmpq(1, 2))),
                sides=_upper(fmpq(4)),
                twin=Twin(r"$\frac{39}{10}$ in place of 4.", sides=_upper(fmpq(39, 10))),
            ),
        ),
        printed_proof=PrintedProof(
            lines=(
                Line(
                    text=r"$\int\|H_t^{-1}\|_2\|\nabla L\|_2 \le 2\int\|H_t^{-1}\nabla L\|_2$: a product of norms is "
                    r"bounded by the norm of the product.",
                    kindest=Witness(
                        text=r"$H = \mathrm{diag}(1, 9)$, $g = (0, 1)$: $1\cdot1$ against $\frac29$.",
                        instance={"h": Rational(9)},
                        sides=_norms,
                        recorded=(1, Rational(2, 9)),
                        harmless={"h": Rational(2)},
                    ),
                ),
                Line(
                    text=r"$2H^{-1} \preceq H_t^{-1} \preceq \frac12H^{-1}$: the two constants are interchanged.",
                    literal=Witness(
                        text=r"$H = 1$: $2 \le \frac12$.",
                        instance={"lower": Rational(2), "upper": Rational(1, 2)},
                        sides=_reversed,
                        recorded=(2, Rational(1, 2)),
                        harmless={"lower": Rational(1, 2), "upper": Rational(2)},
                    ),
                ),
                Line(
                    text=r"$L - \min L = \int(1-t)g^TH^{-1}g\,dt = \frac12g^TH^{-1}g$ with $H$ at the start in place "
                    r"of $H_t$, so “$L - \min L \le \frac12g^TH^{-1}g$”.",
                    kindest=Witness(
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
            expected=ProofVerdict.WRONG,
        ),
        note=r"$R$ is $R_i$. In the Loewner form Assumption 2 does not bound $\|H_t^{-1}g\|$ by $2\|H^{-1}g\|$ (see "
        r"A2), and this proof fails; with $\|\theta-\theta^*\| \le R$ as the hypothesis the lower inequality holds in "
        r"the Loewner form too (L9).",
    ),
)
