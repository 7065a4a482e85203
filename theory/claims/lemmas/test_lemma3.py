"""L3: does a small gradient keep the parameters within R of the minimizer?"""

from __future__ import annotations

from fractions import Fraction

import sympy
from flint import fmpq

from theory import ledger
from theory.ledger.constants import constant
from theory.ledger.steps import by_hand, identity
from theory.losses import given_others
from theory.losses.draws import seeded
from theory.losses.instances import assumptions, layer, parabola
from theory.losses.layers import Layer
from theory.losses.strategies import any_layer, outside


def _gradient_outside(there: Layer, half: fmpq) -> ledger.Sides:
    assert there.radius is not None
    return (half * there.mu * there.radius) ** 2, there.gradient2


def _small_gradient(at: ledger.Instance) -> dict[str, bool]:
    here = given_others.given(at)
    return {**given_others.assumptions(at), "|∂L/∂x| ≤ μR/2": abs(here.slope) <= here.mu * at["R"] / 2}


def _at_R(at: ledger.Instance) -> ledger.Sides:
    """f(R) for f(t) = ∇L(θ* + t(θ − θ*))·(θ − θ*)/‖θ − θ*‖, and ‖∇L(θ)‖; L = cθ²/2, θ > 0."""
    c = at["curvatures"][0]
    return c * at["R"] * at["theta"], c * at["theta"]


def _slope_of_f(at: ledger.Instance) -> ledger.Sides:
    """f'(t) along the segment at unit speed, and ‖∇L(θ)‖/2."""
    _, slope, curvature = layer(at).parts[0]
    return curvature, slope / 2


def _contradiction(at: ledger.Instance) -> ledger.Sides:
    """R‖∇L‖/2 and ‖∇L‖: printed as if the first always exceeded the second."""
    _, slope, _ = layer(at).parts[0]
    return at["R"] * Fraction(int(slope.p), int(slope.q)) / 2, slope


def _positive_theta(at: ledger.Instance) -> dict[str, bool]:
    return {**assumptions(at), "θ in the ball": abs(at["theta"]) <= at["R"]}


t, mu, R = sympy.symbols("t mu R", positive=True)
HALF = constant("half")

CLAIMS = (
    ledger.Claim(
        id="L3",
        place="Lemma 3 (gradient norm bound)",
        statement=r"$\|\nabla L(\theta_i)\|_2 \le \frac12 \mu_i R_i$ implies $\|\theta_i - \theta_i^*\|_2 \le R_i$.",
        expected=ledger.Verdict.HOLDS_AFTER_REPAIR,
        answer="False given other layers that are not at their optimum; for one layer true, «half» sharp; the printed "
        "proof compares a curvature with a gradient.",
        constants={"half": ledger.Constant(fmpq(1, 2), fmpq(13, 25))},
        evidence=(
            ledger.Witness(
                text=r"$L = \frac12(x^2 + \frac85xy + y^2)$, layer $x$, $\mu = R = 1$, given $y = -\frac52$: at $x = "
                r"2$ the gradient is $2 - \frac45\cdot\frac52 = 0 \le \frac12$, and $|x - x^*| = 2 > 1$.",
                instance=given_others.place(given_others.COUPLED, 2, Fraction(-5, 2)),
                sides=lambda at: (abs(at["x"]), at["R"]),
                recorded=(2, 1),
                harmless=given_others.place(given_others.COUPLED, Fraction(1, 2), 0),
                hypotheses=_small_gradient,
            ),
            ledger.Proof(
                text=r"Along the segment from $\theta^*$ to $\theta$, at unit speed, $f(t) = \nabla L \cdot e$ has "
                r"$f(0) = 0$ and $f' = e^T H e \ge \frac\mu2$ for $t \le R$, so $f(R) \ge \frac12\mu R$. $f$ increases "
                r"strictly ($L$ is strictly convex), so $D > R$ gives $\|\nabla L(\theta)\| \ge f(D) > \frac12\mu R$.",
                target=ledger.Target.REPAIRED,
                steps=(
                    by_hand(r"$e^T H e \ge \frac12 e^T H(\theta^*) e \ge \frac\mu2$ within $R$ of $\theta^*$."),
                    identity(
                        r"$\int_0^R \frac\mu2\,dt = \frac12\mu R$.", sympy.integrate(mu / 2, (t, 0, R)), HALF * mu * R
                    ),
                    by_hand(r"Strictly increasing $f$, and $\|\nabla L\| \ge \nabla L \cdot e$."),
                ),
            ),
            ledger.Search(
                text=r"Layers of all families standing farther than $R$ from the minimizer, mostly by less than 1 %: "
                r"$\|\nabla L\|^2 > (\frac12\mu R)^2$.",
                target=ledger.Target.REPAIRED,
                strategy=seeded(lambda rng: outside(any_layer(rng))),
                sides=_gradient_outside,
                relation="<",
            ),
        ),
        repair=r"Let the other layers stand at their optimum, so that $L(\theta_i)$ is one layer's loss, and let "
        r"Assumption 2 hold. Then $\|\nabla L(\theta_i)\|_2 \le «half»\mu_iR_i$ implies $\|\theta_i-\theta_i^*\|_2 "
        r"\le R_i$.",
        printed_proof=ledger.PrintedProof(
            lines=(
                ledger.Line(
                    text=r"$f(R_i) = \nabla L(\theta_i)$ for $f(t)$ taken at $\theta^* + t(\theta-\theta^*)$: that is "
                    r"$f(1)$; unit speed is meant.",
                    literal=ledger.Witness(
                        text=r"$L = \frac12\theta^2$, $\theta = 2$, $R = \frac12$: $f(\frac12) = 1$, $\nabla L = 2$.",
                        instance=parabola(1, 2, R=Fraction(1, 2)),
                        sides=_at_R,
                        recorded=(1, 2),
                        harmless=parabola(1, 2, R=1),
                        relation="==",
                        hypotheses=assumptions,
                    ),
                ),
                ledger.Line(
                    text=r"$f'(t) \ge \frac12\|\nabla L(\theta)\|$ “by Assumption 2”: a curvature is compared with a "
                    r"gradient. True is $f' \ge \frac\mu2$.",
                    kindest=ledger.Witness(
                        text=r"$L = \frac12\theta^2$, $\theta = R = 4$: $f' = 1 < \frac12 \cdot 4$.",
                        instance=parabola(1, 4, R=4),
                        sides=_slope_of_f,
                        recorded=(1, 2),
                        harmless=parabola(1, 1, R=4),
                        relation=">=",
                        hypotheses=_positive_theta,
                    ),
                ),
                ledger.Line(
                    text=r"$\|\nabla L\| \ge \frac12 R\|\nabla L\|$ is called a contradiction; it is none for $R \le "
                    r"2$.",
                    kindest=ledger.Witness(
                        text=r"$R = 1$, $\|\nabla L\| = 1$: $\frac12 \cdot 1 \cdot 1 = \frac12$ does not exceed 1.",
                        instance=parabola(1, 1, R=1),
                        sides=_contradiction,
                        recorded=(Fraction(1, 2), 1),
                        harmless=parabola(1, 1, R=3),
                        relation=">",
                        hypotheses=assumptions,
                    ),
                ),
            ),
            expected=ledger.ProofVerdict.WRONG,
        ),
    ),
)
