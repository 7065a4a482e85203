"""L5: is the Newton decrement at most four times the loss gap near the minimizer?"""

from __future__ import annotations

from fractions import Fraction

import sympy
from flint import fmpq

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
from theory.losses.instances import assumptions, gap_at_most, layer, parabola
from theory.losses.strategies import either


def _form_and_gap(factor: fmpq):
    return lambda here: (here.form, factor * here.gap)


def _path_integral(at: Instance) -> Sides:
    """L − min L, and ∫ (1 − t)² gᵀH⁻¹g dt with the constant H of a parabola."""
    here = layer(at)
    return here.gap, here.form / 3


def _near(at: Instance) -> dict[str, bool]:
    return {**assumptions(at), "L − min L ≤ μR²/16": gap_at_most(at, Fraction(1, 16))}


t, q, mu, R = sympy.symbols("t q mu R", positive=True)

CLAIMS = (
    Claim(
        id="L5",
        place="Lemma 5 (quadratic form integration)",
        statement=r"If $L(\theta_i) - \min L \le \frac1{16}\mu_i R_i^2$ or $\|\nabla L(\theta_i)\|_2 \le \frac14\mu_i "
        r"R_i$, then $\nabla L^T (\nabla^2 L)^{-1} \nabla L \le 4\,(L - \min L)$ at $\theta_i$.",
        expected=Verdict.HOLDS,
        answer="True with the constant 4, which is sharp; the printed integral has (1 − t)² for (1 − t), which gives "
        "6.",
        evidence=(
            Proof(
                text=r"Take the flow of L4 (repaired), $\nabla L(\theta(t)) = (1-t)g$. Along it $\frac{dL}{dt} = "
                r"-(1-t)g^TH_t^{-1}g \le 0$ and $\|\nabla L\|$ falls, so the condition holds all along, and L2 or L3 "
                r"with $R/2$ for $R$ keeps the path within $R/2$ of $\theta^*$, hence within $R$ of $\theta$. There "
                r"$H_t \preceq 2H$, so $H_t^{-1} \succeq \frac12 H^{-1}$ and $L - \min L = \int_0^1 "
                r"(1-t)g^TH_t^{-1}g\,dt \ge \frac12\int_0^1(1-t)\,dt\; g^TH^{-1}g = \frac14 g^TH^{-1}g$.",
                steps=(
                    identity(
                        r"L2 for $R/2$: $\frac14\mu(\frac R2)^2 = \frac1{16}\mu R^2$.",
                        mu * (R / 2) ** 2 / 4,
                        mu * R**2 / 16,
                    ),
                    identity(
                        r"L3 for $R/2$: $\frac12\mu\frac R2 = \frac14\mu R$.",
                        mu * (R / 2) / 2,
                        mu * R / 4,
                    ),
                    by_hand(r"$H_t \preceq 2H$ implies $H_t^{-1} \succeq \frac12H^{-1}$."),
                    identity(
                        r"$\frac12\int_0^1(1-t)\,dt = \frac14$.",
                        sympy.integrate((1 - t) * q / 2, (t, 0, 1)),
                        q / 4,
                    ),
                ),
            ),
            Search(
                text="Layers of all families where one of the two conditions holds, mostly just holds. Sharp where the "
                "curvature doubles right beside θ.",
                strategy=either(fmpq(1, 16), fmpq(1, 4)),
                sides=_form_and_gap(fmpq(4)),
                twin=Twin(r"$\frac{39}{10}$ in place of 4.", sides=_form_and_gap(fmpq(39, 10))),
            ),
        ),
        printed_proof=PrintedProof(
            lines=(
                Line(
                    text=r"$L - \min L = \int_0^1 (1-t)^2 g^T H_t^{-1} g\,dt$. The flow that L4 needs has velocity "
                    r"$-H_t^{-1}g$, so the weight is $1-t$.",
                    kindest=Witness(
                        text=r"$L = \frac12\theta^2$, $\theta = 1$: $\frac12$ against $\int_0^1(1-t)^2\,dt = \frac13$.",
                        instance=parabola(1, 1, R=4),
                        sides=_path_integral,
                        recorded=(Fraction(1, 2), Fraction(1, 3)),
                        harmless=parabola(1, 0, R=4),
                        relation="==",
                        hypotheses=_near,
                    ),
                ),
                Line(
                    text=r"“This integration shows” $g^TH^{-1}g \le 4(L-\min L)$: the line before gives $\frac16 "
                    r"g^TH^{-1}g \le L - \min L$, a factor 6.",
                    gap=Witness(
                        text=r"The numbers 5 for $g^TH^{-1}g$ and 1 for the gap meet $\frac16\cdot5\le1$ but not $5 "
                        r"\le 4$.",
                        instance={"form": Fraction(5), "gap": Fraction(1)},
                        sides=lambda at: (at["form"], 4 * at["gap"]),
                        recorded=(5, 4),
                        harmless={"form": Fraction(3), "gap": Fraction(1)},
                        hypotheses=lambda at: {"form/6 ≤ gap": at["form"] / 6 <= at["gap"]},
                    ),
                ),
            ),
            expected=ProofVerdict.WRONG,
        ),
        note="Read for one layer; the proof cites L4, whose printed flow does not reach the minimizer.",
    ),
)
