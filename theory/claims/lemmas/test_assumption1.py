"""A1: does Assumption 1 make μ_i positive, and does μ_i serve as a strong convexity constant?"""

from __future__ import annotations

import sympy
from flint import fmpq
from sympy import Rational, sqrt

from theory import ledger
from theory.ledger.constants import constant
from theory.ledger.steps import by_hand, identity, nonnegative
from theory.losses.layers import Layer
from theory.losses.strategies import met


def _power_curvature(at: ledger.Instance) -> ledger.Sides:
    """L = θ^p at its minimizer 0: μ = p (p − 1) 0^(p − 2)."""
    p = at["power"]
    return p * (p - 1) * Rational(0) ** (p - 2), 0


def _pseudo_huber(at: ledger.Instance) -> ledger.Sides:
    """L − min L and (μ/2) θ² for L = c √(1 + θ²) + (1 − c) θ²/2, which has μ = 1."""
    c, theta = at["c"], at["theta"]
    return c * (sqrt(1 + theta**2) - 1) + (1 - c) * theta**2 / 2, theta**2 / 2


def _strongly_convex(layer: Layer, quarter: fmpq) -> ledger.Sides:
    return quarter * layer.mu * layer.distance2, layer.gap


def _distance(layer: Layer):
    return layer.distance2


t, mu, D = sympy.symbols("t mu D", positive=True)
QUARTER = constant("quarter")

CLAIMS = (
    ledger.Claim(
        id="A1",
        place='Assumption 1; used as "the strong convexity constant" in the theorem',
        statement=r"$L$ is twice continuously differentiable and strictly convex and has a unique minimizer "
        r"$\theta^*$. Then $\mu_i = \lambda_{\min}(\nabla^2_{\theta_i} L(\theta^*))$ is positive, and it serves as a "
        r"strong convexity constant: $L(\theta) - \min L \ge \frac{\mu_i}{2} \|\theta_i - \theta_i^*\|^2$.",
        expected=ledger.Verdict.HOLDS_AFTER_REPAIR,
        answer="θ⁴ has μ = 0; with Assumption 2, μ > 0 and the gap is at least «quarter» μD², within R of the "
        "minimizer only.",
        constants={"quarter": ledger.Constant(fmpq(1, 4), fmpq(27, 100))},
        evidence=(
            ledger.Witness(
                text=r"$L(\theta) = \theta^4$, $d = 1$: strictly convex, minimizer 0, and $\mu = L''(0) = 12 \cdot 0^2 "
                r"= 0$.",
                instance={"power": 4},
                sides=_power_curvature,
                recorded=(0, 0),
                harmless={"power": 2},
                relation=">",
            ),
            ledger.Witness(
                text=r"Nor does a positive $\mu$ help: $L(\theta) = \sqrt{1 + \theta^2}$ has $\mu = L''(0) = 1$, and "
                r"at $\theta = \frac43$ the gap is $\frac53 - 1 = \frac23$, below $\frac{\mu}{2}\theta^2 = \frac89$.",
                instance={"c": 1, "theta": Rational(4, 3)},
                sides=_pseudo_huber,
                recorded=(Rational(2, 3), Rational(8, 9)),
                harmless={"c": 0, "theta": Rational(4, 3)},
                relation=">=",
            ),
            ledger.Proof(
                text=r"Assumption 2 speaks of $\nabla^2 L(\theta)^{-1}$ at every $\theta$, so the Hessian at "
                r"$\theta^*$, positive semidefinite by convexity, is invertible: $\mu_i > 0$. Within $R_i$ of "
                r"$\theta_i^*$ it gives $H(\theta) \succeq \frac12 H(\theta^*) \succeq \frac{\mu_i}{2} I$; integrate "
                r"twice from the minimizer.",
                target=ledger.Target.REPAIRED,
                steps=(
                    by_hand(r"$H(\theta^*) \succeq 0$ and invertible, so $\mu_i > 0$."),
                    by_hand(
                        r"$H(\theta) \succeq \frac12 H(\theta^*)$ on the ball (Assumption 2, Loewner form: see A2).",
                        "A2",
                    ),
                    identity(
                        r"$\int_0^1 (1-t)\,\frac{\mu}{2} D^2\,dt = «quarter»\mu D^2$.",
                        sympy.integrate((1 - t) * mu / 2 * D**2, (t, 0, 1)),
                        QUARTER * mu * D**2,
                    ),
                    nonnegative(r"The bound is not trivial: $\frac{\mu}{4}D^2 \ge 0$.", mu * D**2 / 4),
                ),
            ),
            ledger.Search(
                text="Layers of all families, standing within R of the minimizer, mostly at its border.",
                target=ledger.Target.REPAIRED,
                strategy=met(_distance),
                sides=_strongly_convex,
            ),
        ),
        repair=r"Let Assumption 2 hold as well. Then $\mu_i > 0$, and $L(\theta) - \min L \ge «quarter»\mu_i "
        r"\|\theta_i - \theta_i^*\|^2$ where $\|\theta_i - \theta_i^*\| \le R_i$ (other layers at their optimum): "
        r"$\mu_i/2$ is a strong convexity constant there; farther out nothing is assured.",
    ),
)
