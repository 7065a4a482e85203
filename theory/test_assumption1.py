"""Claim A1: does Assumption 1 make μ_i a positive strong convexity constant?"""

from __future__ import annotations

from sympy import Rational

from theory.claim import Claim, Verdict, Witness, both

CLAIMS = (
    Claim(
        id="A1",
        place="Assumption 1",
        statement=r"$L$ twice continuously differentiable, strictly convex, with a unique minimizer; then "
        r"$\mu_i = \lambda_{\min}(\nabla^2_{\theta_i} L(\theta^*)) > 0$.",
        expected=Verdict.REFUTED,
        answer="θ⁴ is strictly convex with a unique minimizer and has μ = 0.",
        evidence=both(
            Witness(
                text=r"$L(\theta) = \theta^4$, $d = 1$, $\theta^* = 0$: $\mu = L''(0) = 12 \cdot 0^2 = 0$.",
                instance={"theta_star": Rational(0), "power": 4},
                sides=lambda at: (at["power"] * (at["power"] - 1) * at["theta_star"] ** (at["power"] - 2), 0),
                recorded=(0, 0),
                harmless={"theta_star": Rational(0), "power": 2},
                relation=">",
            ),
        ),
    ),
)
