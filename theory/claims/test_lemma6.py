"""L6: is the loss gap at most the squared gradient over μ near the minimizer?"""

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
from theory.ledger.steps import by_hand, identity, nonnegative
from theory.losses.instances import assumptions, gap_at_most, layer, parabola, ramps
from theory.losses.strategies import either


def _gap_and_gradient(factor: fmpq):
    return lambda here: (here.mu * here.gap, factor * here.gradient2)


def _half(at: Instance) -> Sides:
    here = layer(at)
    return here.gap, here.gradient2 / (2 * here.mu)


def _near(at: Instance) -> dict[str, bool]:
    return {**assumptions(at), "L − min L ≤ μR²/4": gap_at_most(at, Fraction(1, 4))}


m, D, g = sympy.symbols("m D g", positive=True)

CLAIMS = (
    Claim(
        id="L6",
        place="Lemma 6 (gradient and loss bound)",
        statement=r"If $L(\theta_i) - \min L \le \frac14\mu_iR_i^2$ or $\|\nabla L(\theta_i)\|_2 \le \frac12\mu_iR_i$, "
        r"then $L(\theta_i) - \min L \le \frac1{\mu_i}\|\nabla L(\theta_i)\|^2$.",
        expected=Verdict.HOLDS,
        answer="True with the constant 1, which is sharp; the printed proof claims the constant ½, which is false.",
        evidence=(
            Proof(
                text=r"By L2 or L3, $D = \|\theta-\theta^*\| \le R$, and on the ball of radius $R$ around $\theta^*$ "
                r"$H \succeq \frac\mu2 I$: $L$ is $\frac\mu2$-strongly convex there. So $\min L \ge L(\theta) - \|g\|D "
                r"+ \frac\mu4D^2 \ge L(\theta) - \frac{\|g\|^2}\mu$.",
                steps=(
                    by_hand(r"$\min L = L(\theta^*) \ge L(\theta) + g\cdot(\theta^*-\theta) + \frac\mu4D^2$."),
                    identity(
                        r"$\frac{g^2}{\mu} - gD + \frac\mu4D^2 = \frac1\mu(g - \frac\mu2D)^2$.",
                        g**2 / m - g * D + m * D**2 / 4,
                        (g - m * D / 2) ** 2 / m,
                    ),
                    nonnegative(r"and that is at least 0.", (g - m * D / 2) ** 2 / m),
                ),
            ),
            Search(
                text="Layers of all families where one of the two conditions holds, mostly just holds. Sharp where the "
                "curvature halves right beside the minimizer.",
                strategy=either(fmpq(1, 4), fmpq(1, 2)),
                sides=_gap_and_gradient(fmpq(1)),
                twin=Twin(
                    r"$\frac{97}{100}$ in place of 1 (the printed proof has $\frac12$).",
                    sides=_gap_and_gradient(fmpq(97, 100)),
                ),
            ),
        ),
        printed_proof=PrintedProof(
            lines=(
                Line(
                    text=r"From a Taylor expansion with $\approx$: $L - \min L \le \frac1{2\mu}\|\nabla L\|^2$. The "
                    r"remainder is dropped; the inequality is false.",
                    kindest=Witness(
                        text=r"$L''$ falls from 1 at 0 to $\frac12$ at $\frac14$ and stays there, $\theta = 1$: gap "
                        r"$\frac{59}{192} = 0.307$, gradient $\frac12 + \frac1{16} = \frac9{16}$, $\frac12 \cdot "
                        r"\frac{81}{256} = \frac{81}{512} = 0.158$.",
                        instance=ramps({0: 1, Fraction(1, 4): Fraction(1, 2)}, 1, R=2),
                        sides=_half,
                        recorded=(Fraction(59, 192), Fraction(81, 512)),
                        harmless=parabola(1, 1, R=2),
                        hypotheses=_near,
                    ),
                ),
            ),
            expected=ProofVerdict.WRONG,
        ),
        note="Read for one layer, the others at their optimum: with another layer away from its optimum the gap can be "
        "positive where this layer's gradient is 0.",
    ),
)
