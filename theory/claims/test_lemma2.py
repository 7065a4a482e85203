"""L2: does a small loss gap keep the parameters within R of the minimizer?"""

from __future__ import annotations

from fractions import Fraction

import sympy
from flint import fmpq
from sympy import Rational

from theory.ledger.claim import (
    Check,
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
from theory.ledger.exact import related
from theory.ledger.steps import by_hand, identity, positive
from theory.losses.draws import seeded
from theory.losses.instances import assumptions, layer, parabola, ramps
from theory.losses.strategies import any_layer, outside


def _gap_outside(share: fmpq):
    return lambda there: (share * there.mu * there.radius**2, there.gap)


def _taylor(at: Instance) -> Sides:
    """f(1) and f(0) + (μ/2)‖θ' − θ*‖²."""
    here = layer(at)
    return here.gap, here.mu * here.distance2 / 2


def _reach(at: Instance) -> Sides:
    """‖θ' − θ*‖² as printed, 2 (L − min L)/μ², and ‖θ − θ*‖²."""
    here = layer(at)
    return 2 * here.gap / here.mu**2, here.distance2


def _coupled() -> str:
    """Two layers, L = ½(x² + 2ρxy + y²), ρ = 4/5, R = 1, the other layer at −ρx."""
    rho, x = Rational(4, 5), Rational(7, 6)
    gap = (1 - rho**2) * x**2 / 2
    assert related(gap, "<=", Rational(1, 4)), gap
    assert related(x, ">", 1), x
    return f"L − min L = {gap} ≤ 1/4 and |x − x*| = {x} > 1"


def _without_assumption2() -> str:
    """L = √(1 + θ²), μ = 1, R = 4, θ = 40/9."""
    theta = Rational(40, 9)
    gap = sympy.sqrt(1 + theta**2) - 1
    assert related(gap, "<=", 4), gap
    assert related(theta, ">", 4), theta
    return f"L − min L = {gap} ≤ 4 = μR²/4 and θ = {theta} > 4 = R"


t, s, mu, R, D = sympy.symbols("t s mu R D", positive=True)

CLAIMS = (
    Claim(
        id="L2",
        place="Lemma 2 (parameter bound)",
        statement=r"$L(\theta_i) - \min L \le \frac14 \mu_i R_i^2$ implies $\|\theta_i - \theta_i^*\|_2 \le R_i$.",
        expected=Verdict.HOLDS,
        answer="True with the constant ¼, which is sharp; the printed proof loses a factor 2 and then finds no "
        "contradiction.",
        evidence=(
            Proof(
                text=r"On the ball of radius $R$ around $\theta^*$, Assumption 2 gives $H \succeq \frac\mu2 I$, so a "
                r"point at distance $R$ has a gap of at least $\int_0^1 (1-t)\frac\mu2 R^2\,dt = \frac14\mu R^2$. If "
                r"$\|\theta-\theta^*\| = D > R$, the point at distance $R$ on the segment has a gap of at most $\frac "
                r"RD$ times that of $\theta$ (convexity), so $L(\theta) - \min L \ge \frac DR \cdot \frac14\mu R^2 > "
                r"\frac14 \mu R^2$.",
                steps=(
                    by_hand(r"$H(\theta) \succeq \frac12 H(\theta^*) \succeq \frac\mu2 I$ within $R$ of $\theta^*$."),
                    identity(
                        r"$\int_0^1 (1-t)\frac\mu2 R^2\,dt = \frac14\mu R^2$.",
                        sympy.integrate((1 - t) * mu / 2 * R**2, (t, 0, 1)),
                        mu * R**2 / 4,
                    ),
                    positive(
                        r"With $D = R + s$, $s > 0$: $\frac DR \cdot \frac14\mu R^2 - \frac14\mu R^2 > 0$.",
                        sympy.expand((R + s) / R * mu * R**2 / 4 - mu * R**2 / 4),
                    ),
                ),
            ),
            Search(
                text=r"Layers of all families standing farther than $R$ from the minimizer, mostly by less than 1 %: "
                r"their gap exceeds $\frac14\mu R^2$.",
                strategy=seeded(lambda rng: outside(any_layer(rng))),
                sides=_gap_outside(fmpq(1, 4)),
                relation="<",
                twin=Twin(r"$\frac{27}{100}$ in place of $\frac14$.", sides=_gap_outside(fmpq(27, 100))),
            ),
            Check(
                r"Read with the other layers away from their optimum, the lemma is false: $L = \frac12(x^2 + \frac85 "
                r"xy + y^2)$, $R = 1$, $x = \frac76$, $y = -\frac45 x$.",
                _coupled,
            ),
            Check(
                r"Without Assumption 2, which the lemma does not name, it is false: $L = \sqrt{1+\theta^2}$, $R = 4$.",
                _without_assumption2,
            ),
        ),
        printed_proof=PrintedProof(
            lines=(
                Line(
                    text=r"$\theta' = \theta^* + \sqrt{2(L(\theta)-\min "
                    r"L)}\,\frac{\theta-\theta^*}{\mu\|\theta-\theta^*\|}$ lies between $\theta$ and $\theta^*$. As "
                    r"printed its distance is $\sqrt{2G}/\mu$, which is no length; $\sqrt{2G/\mu}$ is meant.",
                    literal=Witness(
                        text=r"$L = \frac12\cdot\frac14\theta^2$, $\theta = 1$: $2G/\mu^2 = \frac14 \cdot 16 = 4 > 1$.",
                        instance=parabola(Fraction(1, 4), 1, R=1),
                        sides=_reach,
                        recorded=(4, 1),
                        harmless=parabola(4, 1, R=1),
                        hypotheses=assumptions,
                    ),
                ),
                Line(
                    text=r"From $f'' \ge \frac\mu2\|\theta'-\theta^*\|^2$: $f(1) \ge f(0) + f'(0) + \frac12 f'' = "
                    r"L(\theta^*) + \frac\mu2\|\theta'-\theta^*\|^2$. Half of $\frac\mu2$ is $\frac\mu4$, and with "
                    r"$\frac\mu4$ the next line contradicts nothing.",
                    kindest=Witness(
                        text=r"$L''$ falls from 1 at 0 to $\frac12$ at $\frac14$ and stays there; $\theta' = 1$: $f(1) "
                        r"= \frac14 + \int_0^{1/4}(1-x)(\frac12-2x)\,dx = \frac14 + \frac{11}{192} = \frac{59}{192} < "
                        r"\frac12$.",
                        instance=ramps({0: 1, Fraction(1, 4): Fraction(1, 2)}, 1, R=2),
                        sides=_taylor,
                        recorded=(Fraction(59, 192), Fraction(1, 2)),
                        harmless=parabola(1, 1, R=2),
                        relation=">=",
                        hypotheses=assumptions,
                    ),
                ),
            ),
            expected=ProofVerdict.WRONG,
        ),
        note=r"Read for one layer, the others at their optimum, with Assumption 2 in force ($R_i$ is defined nowhere "
        r"else).",
    ),
)
