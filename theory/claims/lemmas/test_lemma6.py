"""L6: is the loss gap at most the squared gradient over μ near the minimizer?"""

from __future__ import annotations

from fractions import Fraction

import sympy
from flint import fmpq

from theory import ledger
from theory.ledger.constants import constant
from theory.ledger.steps import by_hand, identity, nonnegative
from theory.losses import given_others
from theory.losses.instances import assumptions, gap_at_most, layer, parabola, ramps
from theory.losses.layers import Layer
from theory.losses.strategies import either


def _gap_and_gradient(here: Layer, one: fmpq) -> ledger.Sides:
    return here.mu * here.gap, one * here.gradient2


def _given_y(at: ledger.Instance) -> ledger.Sides:
    here = given_others.given(at)
    return here.gap, here.slope**2 / here.mu


def _small_gap(at: ledger.Instance) -> dict[str, bool]:
    here = given_others.given(at)
    return {**given_others.assumptions(at), "L − min L ≤ μR²/4": here.gap <= here.mu * at["R"] ** 2 / 4}


def _half(at: ledger.Instance) -> ledger.Sides:
    here = layer(at)
    return here.gap, here.gradient2 / (2 * here.mu)


def _near(at: ledger.Instance) -> dict[str, bool]:
    return {**assumptions(at), "L − min L ≤ μR²/4": gap_at_most(at, Fraction(1, 4))}


m, D, g = sympy.symbols("m D g", positive=True)
ONE = constant("one")

CLAIMS = (
    ledger.Claim(
        id="L6",
        place="Lemma 6 (gradient and loss bound)",
        statement=r"If $L(\theta_i) - \min L \le \frac14\mu_iR_i^2$ or $\|\nabla L(\theta_i)\|_2 \le \frac12\mu_iR_i$, "
        r"then $L(\theta_i) - \min L \le \frac1{\mu_i}\|\nabla L(\theta_i)\|^2$.",
        expected=ledger.Verdict.HOLDS_AFTER_REPAIR,
        answer="False given other layers that are not at their optimum; for one layer true, «one» sharp; the printed "
        "proof claims ½.",
        constants={"one": ledger.Constant(fmpq(1), fmpq(97, 100))},
        evidence=(
            ledger.Witness(
                text=r"$L = \frac12(x^2 + y^2)$, layer $x$, $\mu = R = 1$, given $y = \frac12$: at $x = 0$ the gap is "
                r"$\frac18 \le \frac14$, and the gradient is 0.",
                instance=given_others.place(given_others.SEPARATE, 0, Fraction(1, 2)),
                sides=_given_y,
                recorded=(Fraction(1, 8), 0),
                harmless=given_others.place(given_others.SEPARATE, Fraction(1, 2), 0),
                hypotheses=_small_gap,
            ),
            ledger.Proof(
                text=r"By L2 or L3, $D = \|\theta-\theta^*\| \le R$, and on the ball of radius $R$ around $\theta^*$ "
                r"$H \succeq \frac\mu2 I$: $L$ is $\frac\mu2$-strongly convex there. So $\min L \ge L(\theta) - \|g\|D "
                r"+ \frac\mu4D^2 \ge L(\theta) - \frac{\|g\|^2}\mu$.",
                target=ledger.Target.REPAIRED,
                steps=(
                    by_hand(r"$\min L = L(\theta^*) \ge L(\theta) + g\cdot(\theta^*-\theta) + \frac\mu4D^2$."),
                    identity(
                        r"$\frac{g^2}{\mu} - gD + \frac\mu4D^2 = \frac1\mu(g - \frac\mu2D)^2$.",
                        ONE * g**2 / m - g * D + m * D**2 / 4,
                        (g - m * D / 2) ** 2 / m,
                    ),
                    nonnegative(r"and that is at least 0.", (g - m * D / 2) ** 2 / m),
                    by_hand(r"$D \le R$.", "L2", "L3"),
                ),
            ),
            ledger.Search(
                text="Layers of all families where one of the two conditions holds, mostly just holds. Sharp where the "
                "curvature halves right beside the minimizer.",
                target=ledger.Target.REPAIRED,
                strategy=either(fmpq(1, 4), fmpq(1, 2)),
                sides=_gap_and_gradient,
            ),
        ),
        repair=r"Let the other layers stand at their optimum, so that $L(\theta_i)$ is one layer's loss. Under "
        r"the same conditions $L(\theta_i) - \min L \le \frac{«one»}{\mu_i}\|\nabla L(\theta_i)\|^2$.",
        printed_proof=ledger.PrintedProof(
            lines=(
                ledger.Line(
                    text=r"From a Taylor expansion with $\approx$: $L - \min L \le \frac1{2\mu}\|\nabla L\|^2$. The "
                    r"remainder is dropped; the inequality is false.",
                    kindest=ledger.Witness(
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
            expected=ledger.ProofVerdict.WRONG,
        ),
    ),
)
