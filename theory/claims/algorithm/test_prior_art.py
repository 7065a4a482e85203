"""Whose idea the clipped Hessian is: formulas of earlier methods beside Algorithm 1's."""

from __future__ import annotations

from typing import Any

import sympy
from sympy import Rational

from theory import ledger
from theory.updates import algorithm1


def eigenvalue_modification(eigenvalues: tuple[Any, ...], least: Any) -> tuple[Any, ...]:
    """The textbook's modified Newton matrix on a diagonal Hessian: add max(0, δ − λ) to each eigenvalue λ."""
    return tuple(value + max(0, least - value) for value in eigenvalues)


def sophia_denominator(h: tuple[Any, ...], gamma: Any, eps: tuple[Any, ...]) -> tuple[Any, ...]:
    """max{γh, ε}, Sophia's, coordinate by coordinate."""
    return tuple(max(gamma * value, least) for value, least in zip(h, eps, strict=True))


def helene_denominator(h: tuple[Any, ...], gamma: Any, floors: tuple[Any, ...]) -> tuple[Any, ...]:
    """γ max(h, λ) of Algorithm 1, its ε aside."""
    return tuple(gamma * algorithm1.larger(value, floor) for value, floor in zip(h, floors, strict=True))


def _from_textbook(at: ledger.Instance) -> ledger.Sides:
    floors = tuple(at["floor"] for _ in at["h"])
    textbook = eigenvalue_modification(at["h"], at["least"])
    return algorithm1.squared_distance(helene_denominator(at["h"], 1, floors), textbook), 0


def _from_sophia(at: ledger.Instance) -> ledger.Sides:
    return (
        algorithm1.squared_distance(
            helene_denominator(at["h"], at["gamma"], at["floors"]), sophia_denominator(at["h"], at["gamma"], at["eps"])
        ),
        0,
    )


NOVEL = ledger.Claim(
    id="ALG-novel",
    place='Appendix A.3, "HELENE is the first method to clip the Hessian matrix in second-order optimization"',
    statement=r"No earlier second-order method clips the Hessian as $\max(h, \lambda)$ does.",
    expected=ledger.Verdict.REFUTED,
    answer="max(h, λ) is the textbook eigenvalue modification of Newton's method, and Sophia's max{γh, ε} with ε = γλ.",
    evidence=(
        ledger.Witness(
            text=r"Eigenvalue modification of Newton's method (Nocedal and Wright, Numerical Optimization, section "
            r"3.4) raises every eigenvalue below δ to δ. On the diagonal Hessian $(-1, 3)$ with $\lambda = \delta = 1$ "
            r"both give $(1, 3)$: distance 0, where the claim needs a difference.",
            instance={"h": (-1, 3), "floor": 1, "least": 1},
            sides=_from_textbook,
            recorded=(0, 0),
            harmless={"h": (-1, 3), "floor": 1, "least": 2},
            relation="!=",
        ),
        ledger.Witness(
            text=r"Only diagonal preconditioners of language models, with a floor for each layer: Sophia (arXiv "
            r"2305.14342, Algorithm 3) divides by $\max\{\gamma h, \epsilon\}$. With its ε set to $\gamma\lambda_i$ "
            r"for each layer: $\gamma = 2$, $h = (\frac14, 3)$, floors $(\frac12, 4)$ give $(1, 8)$ for both: "
            r"distance 0.",
            target=ledger.Target.KINDEST,
            instance={
                "h": (Rational(1, 4), Rational(3)),
                "gamma": 2,
                "floors": (Rational(1, 2), Rational(4)),
                "eps": (Rational(1), Rational(8)),
            },
            sides=_from_sophia,
            recorded=(0, 0),
            harmless={
                "h": (Rational(1, 4), Rational(3)),
                "gamma": 2,
                "floors": (Rational(1, 2), Rational(4)),
                "eps": (Rational(1), Rational(1)),
            },
            relation="!=",
        ),
        ledger.Proof(
            text=r"$\gamma \max(h, \lambda) = \max\{\gamma h, \gamma\lambda\}$ for every real $h$ and $\gamma > 0$.",
            target=ledger.Target.KINDEST,
            steps=(ledger.Step("Both orders of $h$ and λ.", lambda power=1: _max_is_homogeneous(power), {"power": 2}),),
        ),
    ),
    note="What is left as new is to choose that constant for each layer, a setting for parameter groups. Sophia clips "
    "the quotient besides, HELENE does not; no upper bound on h is in either.",
)


def _max_is_homogeneous(power: int = 1) -> bool:
    gamma, floor, gap = sympy.symbols("gamma lambda delta", positive=True)
    both = ((floor + gap, floor), (floor - gap, floor))
    return all(
        sympy.simplify(
            (gamma**power * sympy.Max(a, b)).rewrite(sympy.Abs) - sympy.Max(gamma * a, gamma * b).rewrite(sympy.Abs)
        ) == 0
        for a, b in both
    )  # fmt: skip


CLAIMS = (NOVEL,)
