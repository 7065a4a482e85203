"""Whether true labels make A-GNB vary less than sampled ones make GNB: over minibatches, by enumeration."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import sympy

from theory import ledger
from theory.curvature import labels, moments
from theory.curvature.labels import Model

ONE, HALF, TWO_THIRDS = Fraction(1), Fraction(1, 2), Fraction(2, 3)


def _spread_of_squares(at: ledger.Instance) -> ledger.Sides:
    """Variance of one sample's squared gradient (of the mean of B of them: over B), true and sampled labels."""
    return tuple(moments.variance(labels.squares_law(at["model"], sampled)) for sampled in (False, True))


def _spread_of_returned(at: ledger.Instance) -> ledger.Sides:
    return tuple(moments.variance(labels.returned_law(at["model"], at["batch"], sampled)) for sampled in (False, True))


def _label_noise(sign: int = 1) -> bool:
    """Given the input: variances q(1−q)(1−2p)²x⁴, q the true rate, and p(1−p)(1−2p)²x⁴; bias (q−p)(1−2p)x²."""
    p, q, x = sympy.symbols("p q x", positive=True)

    def law(rate: Any) -> list[tuple[Any, Any]]:
        return [((p - 1) ** 2 * x**2, rate), (p**2 * x**2, 1 - rate)]

    def expected(values: list[tuple[Any, Any]]) -> Any:
        return sum(value * weight for value, weight in values)

    def variance(rate: Any) -> Any:
        return expected([(value**2, weight) for value, weight in law(rate)]) - expected(law(rate)) ** 2

    bias = expected(law(q)) - p * (1 - p) * x**2
    return (
        sympy.expand(variance(q) - q * (1 - q) * (1 - 2 * p) ** 2 * x**4) == 0
        and sympy.expand(bias - sign * (q - p) * (1 - 2 * p) * x**2) == 0
    )


def _imbalance() -> str:
    """A rare class, at the well-specified optimum: GNB and A-GNB have one law; the spread of both, B = 64."""
    parts = []
    for p in (Fraction(1, 2), Fraction(1, 50)):
        model = (labels.binary(p, p),)
        assert labels.returned_law(model, 8) == labels.returned_law(model, 8, sampled=True)
        v, law = p * (1 - p), labels.gradient_law(model)
        m4 = moments.mean([(x**4, q) for x, q in law])
        relative = float((2 * v**2 + (m4 - 3 * v**2) / 64) / v**2) ** 0.5
        parts.append(f"P(y = 1) = {p}: standard deviation {relative:.2f} of the mean")
    p, true = HALF, Fraction(1, 50)
    mu, v = p - true, true * (1 - true)
    ratio = float((v + 64 * mu**2) / (p * (1 - p)))
    parts.append(
        f"a model at 1/2 with labels at 1/50: E[Bĝ²] at B = 64 is {ratio:.0f} times the Hessian with true labels, "
        "1 times with sampled ones"
    )
    return "; ".join(parts)


def _spread_of_both() -> str:
    from theory.curvature import oracles

    return oracles.sampled_beside_true()


CERTAIN: Model = (labels.binary(TWO_THIRDS, ONE, weight=HALF), labels.binary(TWO_THIRDS, ONE, Fraction(0), HALF))

CLAIM = ledger.Claim(
    id="GNB-variance",
    place="Section 3.4, second paragraph",
    statement="A-GNB's true labels give a smaller variance than GNB's sampled labels.",
    expected=ledger.Verdict.REFUTED,
    answer="Larger where labels are less certain than the model, and off the optimum as B grows; equal where unbiased.",
    evidence=(
        ledger.Witness(
            text=r"Mean of squares, logistic regression, $x = 1$, the model at $\frac23$, labels a fair coin. The "
            r"squares are $\frac19$ and $\frac49$, so the variance is $P(1-P)\,\frac19$: $\frac14\cdot\frac19 = "
            r"\frac1{36}$ with true labels, $\frac29\cdot\frac19 = \frac2{81}$ with sampled ones.",
            instance={"model": (labels.binary(TWO_THIRDS, HALF),)},
            sides=_spread_of_squares,
            recorded=(Fraction(1, 36), Fraction(2, 81)),
            harmless={"model": (labels.binary(TWO_THIRDS, ONE),)},
        ),
        ledger.Witness(
            text=r"Labels without noise and the estimate that Algorithm 2 returns, $B = 8$: inputs 1 and 0 equally "
            r"likely, the model at $\frac23$, labels always 1. Off the optimum the variance grows with B: "
            r"$\frac{5}{192}$ here, with sampled labels $\frac{2}{81}$ (for every B).",
            target=ledger.Target.KINDEST,
            instance={"model": CERTAIN, "batch": 8},
            sides=_spread_of_returned,
            recorded=(Fraction(5, 192), Fraction(2, 81)),
            harmless={"model": CERTAIN, "batch": 1},
        ),
        ledger.Proof(
            text=r"Given the input, binary labels with the rate q, model p: the squares' variances are "
            r"$q(1-q)(1-2p)^2x^4$ and $p(1-p)(1-2p)^2x^4$, and A-GNB's bias is $(q-p)(1-2p)x^2$.",
            target=ledger.Target.KINDEST,
            steps=(
                ledger.Step("Both formulas.", _label_noise, {"sign": -1}),
                ledger.Step(
                    "So where A-GNB is unbiased (q = p, or p = ½) the variances are equal; smaller comes with a bias."
                ),
            ),
        ),
        ledger.Check("A rare class.", _imbalance),
        ledger.Check("The spread of both on four classifiers.", _spread_of_both),
    ),
    note="That the variance added by drawing labels is gone when none are drawn is true and says nothing: given a "
    "minibatch, no function of it varies. What an optimizer meets is the variance over minibatches, judged above; the "
    "label noise has not gone, it is an error of each estimate.",
)


CLAIMS = (CLAIM,)
