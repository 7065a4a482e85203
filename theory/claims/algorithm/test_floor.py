"""The floor max(h, λ): what it does to over-estimated curvature, and what the theorem's λ would be in its place."""

from __future__ import annotations

from fractions import Fraction

import sympy

from theory import ledger
from theory.updates import step_bound
from theory.updates.algorithm1 import Settings, State, larger, step

# --- ALG-floor ----------------------------------------------------------------------------------------------------


def _clipped(at: ledger.Instance) -> ledger.Sides:
    """The denominator with the estimate h, and the largest that the claim allows it."""
    return larger(at["h"], at["floor"]), at["factor"] * larger(at["sigma"], at["floor"])


def _over_estimates(at: ledger.Instance) -> dict[str, bool]:
    return {"h over-estimates the curvature": at["h"] > at["sigma"], "λ > 0": at["floor"] > 0}


def _never_below(share: int = 1) -> bool:
    floor, gap = sympy.symbols("lambda delta", nonnegative=True)
    above = sympy.Max(floor + gap, floor).rewrite(sympy.Abs) - (floor + gap)  # h ≥ λ: nothing changes
    below = sympy.Max(floor - gap, floor).rewrite(sympy.Abs) - (floor - gap)  # h ≤ λ: raised by the gap
    return sympy.simplify(above) == 0 and sympy.simplify(below - share * gap) == 0


FLOOR = ledger.Claim(
    id="ALG-floor",
    place='Introduction ("prevent the overestimation of extreme values in the Hessian diagonal"), section 3.2, 3.5',
    statement=r"Clipping as $\max(h, \lambda_i)$ keeps over-estimated curvature from disturbing the update: with "
    r"$h > \sigma$, σ the true curvature, the denominator stays at $\max(\sigma, \lambda_i)$.",
    expected=ledger.Verdict.REFUTED,
    answer="A floor never lowers h: an over-estimate above it passes unchanged, however large; it raises small values.",
    evidence=(
        ledger.Witness(
            text=r"$\sigma = 1$, $\lambda = 1$, estimated $h = 2$: $\max(h, \lambda) = 2$, where $\max(\sigma,\lambda) "
            r"= 1$. The coordinate moves half as far as it should.",
            instance={"sigma": 1, "floor": 1, "h": 2, "factor": 1},
            sides=_clipped,
            recorded=(2, 1),
            harmless={"sigma": 1, "floor": 3, "h": 2, "factor": 1},
            hypotheses=_over_estimates,
        ),
        ledger.Witness(
            text=r"Some bounded over-estimate would be kept, by a factor $K$ of the true denominator. For each $K$ "
            r"take $h = 2K$; for $K = 10$: $\max(20, 1) = 20 > 10$.",
            target=ledger.Target.KINDEST,
            instance={"sigma": 1, "floor": 1, "h": 20, "factor": 10},
            sides=_clipped,
            recorded=(20, 10),
            harmless={"sigma": 1, "floor": 1, "h": 9, "factor": 10},
            hypotheses=_over_estimates,
        ),
        ledger.Proof(
            text=r"$\max(h, \lambda) \ge h$ always: equal to $h$ where $h \ge \lambda$, so the update is the same as "
            "without a floor.",
            target=ledger.Target.KINDEST,
            steps=(
                ledger.Step(
                    r"$h = \lambda + \delta$ and $h = \lambda - \delta$, $\delta \ge 0$.", _never_below, {"share": 2}
                ),
            ),
        ),
    ),
    note=r"What the floor does is the opposite: it keeps *under*-estimated (small, zero, negative) curvature from "
    r"blowing the update up, $|\Delta\theta_j| \le \eta |m_j|/(\gamma\lambda_i+\epsilon)$; see FLOOR-descent. A floor "
    r"above every estimate ends the disturbance together with all use of curvature (ALG-reduce).",
)


# --- ALG-lambda ---------------------------------------------------------------------------------------------------

R, D, H, MU = sympy.symbols("R d h mu", positive=True)


def _gap_after(theta: Fraction, radius: Fraction, steps: int) -> Fraction:
    """½θ² after so many steps of Algorithm 1 on ½θ², h exact, η = ½, the floor R/2 (d = 1)."""
    state = State((theta,), (0,), (Fraction(1),))
    for _ in range(steps):
        state = step(state, state.theta, None, (radius / 2,), Settings(lr=Fraction(1, 2)))
    return state.theta[0] ** 2 / 2


def _printed_bound(theta: Fraction, radius: Fraction, target: Fraction) -> int:
    gap = sympy.Rational(theta.numerator, theta.denominator) ** 2 / 2
    return max(0, int(sympy.floor(gap + sympy.log(sympy.Rational(radius**2 / (32 * target))))))


def _repaired_bound(theta: Fraction, radius: Fraction, target: Fraction) -> int:
    bound = step_bound.bound(step_bound.PROVED, 1, theta**2 / 2 / radius**2, target / radius**2)
    return int(bound.floor().unique_fmpz())


def _least_gap(theta: Fraction, radius: Fraction, steps: int) -> Fraction:
    """A lower bound of that gap for R ≥ 2: (1 − 1/R)^2T ≥ 1 − 2T/R (Bernoulli)."""
    return theta**2 / 2 * (1 - 2 * steps / radius)


def _against_printed(at: ledger.Instance) -> ledger.Sides:
    theta, radius, target = (Fraction(at[name]) for name in ("theta", "R", "target"))
    return _least_gap(theta, radius, _printed_bound(theta, radius, target)), target


def _against_repaired(at: ledger.Instance) -> ledger.Sides:
    theta, radius, target = (Fraction(at[name]) for name in ("theta", "R", "target"))
    return _least_gap(theta, radius, _repaired_bound(theta, radius, target)), target


def test_gap_is_at_least_bernoullis():
    """The bound that the witnesses use, against the steps themselves, exactly; the numbers of steps quoted."""
    for theta, radius in ((1, 64), (1, 1024), (4, 8), (1, 2)):
        for steps in (0, 1, 7, 64):
            exact = _gap_after(Fraction(theta), Fraction(radius), steps)
            assert exact >= _least_gap(Fraction(theta), Fraction(radius), steps)
    assert _printed_bound(Fraction(1), Fraction(64), EIGHTH) == 7
    assert _repaired_bound(Fraction(1), Fraction(1024), EIGHTH) == 68


EIGHTH = Fraction(1, 8)

LAMBDA = ledger.Claim(
    id="ALG-lambda",
    place="Theorem 1 and section 4, with Algorithm 1",
    statement=r"The theorem's $\lambda_i = R_i/(2\sqrt{d_i})$ serves as the floor $\lambda_i$ of Algorithm 1, in "
    r"$\max(h, \lambda_i)$.",
    expected=ledger.Verdict.ILL_POSED,
    answer="A length (of θ) is compared with a curvature; taken as numbers, a larger λ slows Algorithm 1 without "
    "limit.",
    evidence=(
        ledger.Units(
            text=r"In $\max(h, \lambda)$ the two must have one unit. A Hessian's diagonal has loss·θ⁻², "
            r"$R/(2\sqrt d)$ has θ.",
            lhs=H,
            rhs=R / (2 * sympy.sqrt(D)),
            units={H: {"loss": 1, "theta": -2}, R: {"theta": 1}, MU: {"loss": 1, "theta": -2}},
            recorded=({"loss": 1, "theta": -2}, {"theta": 1}),
            mended=MU / 2,
        ),
    ),
    reading=ledger.Reading(
        statement=r"Units fixed, the numbers taken as they are: Algorithm 1 with the exact Hessian for $h$, $\eta = "
        r"\frac12$ and the floor $R_i/(2\sqrt{d_i})$ reaches the target within the theorem's number of steps.",
        expected=ledger.Verdict.REFUTED,
        evidence=(
            ledger.Witness(
                text=r"$L = \frac12\theta^2$, $\theta_0 = 1$; Assumption 2 holds for every $R$. $R = 64$, so $\lambda "
                r"= 32$ and each step takes $\theta$ to $\frac{63}{64}\theta$. The printed bound for $\epsilon = "
                r"\frac18$ is $\frac12 + \ln 1024 = 7.4$; after 7 steps the gap is $\frac12 (\frac{63}{64})^{14} = "
                r"0.40 \ge \frac{25}{64} > \frac18$.",
                instance={"theta": 1, "R": 64, "target": EIGHTH},
                sides=_against_printed,
                recorded=(Fraction(25, 64), EIGHTH),
                harmless={"theta": 4, "R": 8, "target": 1},
            ),
            ledger.Witness(
                text=r"The same with the bound of T-maxd (proved for the clipped update), $R = "
                r"1024$: it grows like $\ln R$, 68 steps, while Algorithm 1 needs some $R$ steps; the gap is then "
                r"$\frac12 (\frac{1023}{1024})^{136} \ge \frac12 (1 - \frac{136}{1024}) = \frac{111}{256} > \frac18$.",
                target=ledger.Target.KINDEST,
                instance={"theta": 1, "R": 1024, "target": EIGHTH},
                sides=_against_repaired,
                recorded=(Fraction(111, 256), EIGHTH),
                harmless={"theta": 1, "R": 2, "target": EIGHTH},
            ),
        ),
    ),
    note=r"With A-GNB for $h$ the unit is loss²·θ⁻² (GNB-scale): still not θ. A larger clip lets the theorem's update "
    r"go further; a larger floor shortens Algorithm 1's steps.",
)


CLAIMS = (FLOOR, LAMBDA)
