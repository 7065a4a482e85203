"""L11: does clipping stop, and the gap then shrink geometrically?"""

from __future__ import annotations

from fractions import Fraction
from random import Random

import sympy
from flint import fmpq

from theory import ledger
from theory.ledger.constants import constant
from theory.ledger.steps import by_hand, identity, nonnegative
from theory.losses.draws import seeded
from theory.losses.functions import least
from theory.losses.instances import assumptions, layer, parabola
from theory.losses.layers import Layer
from theory.losses.strategies import ROOTS, any_layer, meet


def _newton(at: ledger.Instance) -> ledger.Sides:
    """The Newton step |H⁻¹∇L| (d = 1) and the clip λ."""
    _, slope, curvature = layer(at).parts[0]
    return abs(slope / curvature), at["clip"]


def _conditions(at: ledger.Instance) -> dict[str, bool]:
    here = layer(at)
    return {
        **assumptions(at),
        "λ ≤ R/√d": at["clip"] <= at["R"],
        "L − min L ≤ μ²/8": bool(here.gap <= here.mu**2 / 8),
    }


def _case(eighth: fmpq):
    """A layer with L − min L ≤ eighth · μλ², mostly just so, λ = R/(2√d), and a step size."""

    def make(rng: Random) -> tuple[Layer, fmpq, fmpq]:
        here = any_layer(rng)
        share = eighth / (2 * ROOTS[here.dimension]) ** 2
        here = meet(here, lambda there: there.gap / (share * there.mu))
        assert here.radius is not None
        return here, here.radius / (2 * ROOTS[here.dimension]), rng.choice((fmpq(1, 4), fmpq(1, 2), fmpq(3, 4)))

    return seeded(make)


def _unclipped(case: tuple[Layer, fmpq, fmpq]) -> ledger.Sides:
    """The largest coordinate of the Newton step in the eigenbasis, and the clip."""
    here, clip, _ = case
    return -least(-abs(u / sigma) for u, sigma in here.spectrum), clip


def _contraction(case: tuple[Layer, fmpq, fmpq], one: fmpq) -> ledger.Sides:
    here, clip, eta = case
    return here.step(clip, eta).gap, (1 - one * eta * (1 - eta)) * here.gap


mu, lam, R, d, eta, gap, q = sympy.symbols("mu lambda R d eta G q", positive=True)
EIGHTH, ONE = constant("eighth"), constant("one")
LEAST = fmpq(1, 8)

CLAIMS = (
    ledger.Claim(
        id="L11",
        place="Lemma 11 (convergence lemma)",
        statement=r"Let $\lambda_i \le R_i/\sqrt{d_i}$ and $L(\theta_T) - \min L \le \frac18\mu_i^2$. Then for $t \ge "
        r"T$ nothing is clipped, $\theta_{t+1} = \theta_t - \eta H^{-1}\nabla L$, and $L(\theta_t) - \min L \le "
        r"(1-\eta(1-\eta))^{t-T}(L(\theta_T) - \min L)$.",
        expected=ledger.Verdict.HOLDS_AFTER_REPAIR,
        answer="False: μ² is no loss; with the threshold «eighth» μλ² clipping stops and the rate holds.",
        constants={"eighth": ledger.Constant(LEAST, fmpq(1, 7)), "one": ledger.Constant(fmpq(1), fmpq(19, 10))},
        evidence=(
            ledger.Witness(
                text=r"$L = 8\theta^2$, $\mu = 16$, $\theta = 2$, $\lambda = R = 1$: the gap is $32 = "
                r"\frac18\cdot16^2$, but the Newton step is $\theta = 2 > \lambda$: it is clipped.",
                instance=parabola(16, 2, R=1, clip=1),
                sides=_newton,
                recorded=(2, 1),
                harmless=parabola(4, 1, R=1, clip=1),
                hypotheses=_conditions,
            ),
            ledger.Units(
                text=r"The gap is a loss; $\mu^2$ is a squared loss over a fourth power of length. The Sophia paper "
                r"has $\frac18\mu\rho^2$.",
                lhs=gap,
                rhs=mu**2 / 8,
                units={gap: {"loss": 1}, mu: {"loss": 1, "θ": -2}, lam: {"θ": 1}},
                recorded=({"loss": 1}, {"loss": 2, "θ": -4}),
                mended=mu * lam**2 / 8,
            ),
            ledger.Proof(
                text=r"With $\lambda \le \frac R{2\sqrt d}$, $\frac18\mu\lambda^2 \le \frac1{16}\mu R^2$, so L7 "
                r"(repaired) gives $\|H^{-1}g\|^2 \le \frac8\mu\cdot\frac18\mu\lambda^2 = \lambda^2$: no coordinate is "
                r"clipped. The gap does not grow (L10, repaired), so this stays so. Without clipping L10 reads "
                r"$G_{t+1} \le G_t - (\eta-\eta^2)g^TH^{-1}g$ and $G \le g^TH^{-1}g$ (L8; L9's gap lemma with $D \le "
                r"R$), hence the factor $1 - \eta(1-\eta)$.",
                target=ledger.Target.REPAIRED,
                steps=(
                    nonnegative(
                        r"$\frac1{16}\mu R^2 - \frac18\mu\frac{R^2}{4d} = \frac{\mu R^2(2d-1)}{32d} \ge 0$ for $d \ge "
                        r"1$ (put $d = 1 + q$).",
                        sympy.factor((mu * R**2 / 16 - mu * R**2 / (32 * d)).subs(d, 1 + q)),
                    ),
                    identity(
                        r"$\frac8\mu\cdot«eighth»\mu\lambda^2 = \lambda^2$.", 8 / mu * EIGHTH * mu * lam**2, lam**2
                    ),
                    identity(
                        r"$G - (\eta-\eta^2)G = (1-\eta(1-\eta))G$.",
                        gap - (eta - eta**2) * gap,
                        (1 - ONE * eta * (1 - eta)) * gap,
                    ),
                    by_hand("The lemmas in their repaired forms.", "L7", "L8", "L9", "L10"),
                ),
            ),
            ledger.Search(
                text=r"No clipping: layers of all families with $L - \min L \le \frac18\mu\lambda^2$, mostly just so, "
                r"$\lambda = \frac R{2\sqrt d}$. The constant 8 is sharp.",
                target=ledger.Target.REPAIRED,
                strategy=_case,
                sides=_unclipped,
            ),
            ledger.Search(
                text=r"The rate: on the same layers one step with $\eta = \frac14, \frac12, \frac34$ multiplies the "
                r"gap by at most $1 - \eta(1-\eta)$. Spikes of the curvature at θ give $\frac9{16}$ for $\eta = "
                r"\frac12$.",
                target=ledger.Target.REPAIRED,
                strategy=_case(LEAST),
                sides=_contraction,
            ),
        ),
        repair=r"Let $\lambda_i \le \frac{R_i}{2\sqrt{d_i}}$, $0 < \eta < 1$ and $L(\theta_T) - \min L \le "
        r"«eighth»\mu_i\lambda_i^2$. Then nothing is clipped from $T$ on and the gap shrinks by $1-\eta(1-\eta)$ or "
        r"better a step.",
        printed_proof=ledger.PrintedProof(
            lines=(
                ledger.Line(
                    text=r"“By Lemma 7 … $\le \lambda_i$, so clipping will not happen” ($\nabla^2L - \nabla L$ is "
                    r"printed for $\nabla^2L^{-1}\nabla L$). From $\frac18\mu^2$ even the repaired Lemma 7 gives "
                    r"$\sqrt\mu$, not $\lambda$.",
                    kindest=ledger.Witness(
                        text=r"$L = 8\theta^2$, $\theta = 2$, $\lambda = R = 1$: the Newton step is $2 > 1$.",
                        instance=parabola(16, 2, R=1, clip=1),
                        sides=_newton,
                        recorded=(2, 1),
                        harmless=parabola(4, 1, R=1, clip=1),
                        hypotheses=_conditions,
                    ),
                ),
                ledger.Line(
                    text=r"“By Lemmas 5 and 10” $-(\eta-\eta^2)g^TH^{-1}g \le -\eta(1-\eta)G$: Lemma 5 bounds the "
                    r"other way round, $g^TH^{-1}g \le 4G$; Lemma 8 is needed.",
                    gap=ledger.Witness(
                        text=r"The numbers $g^TH^{-1}g = \frac12$ and $G = 1$ meet Lemma 5 but not $G \le g^TH^{-1}g$.",
                        instance={"gap": Fraction(1), "form": Fraction(1, 2)},
                        sides=lambda at: (at["gap"], at["form"]),
                        recorded=(1, Fraction(1, 2)),
                        harmless={"gap": Fraction(1), "form": Fraction(2)},
                        hypotheses=lambda at: {"form ≤ 4 gap": at["form"] <= 4 * at["gap"]},
                    ),
                ),
            ),
            expected=ledger.ProofVerdict.WRONG,
        ),
    ),
)
