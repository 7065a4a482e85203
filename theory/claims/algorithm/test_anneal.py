r"""The anneal α(t) = β1 + (1 − β1) e^{−t/T} as it is: its range, its gain, its parameters.

Exact instances write r for e^{−1/T}: every rational r in (0, 1) is one, with T = −1/ln r.
"""

from __future__ import annotations

import random
from fractions import Fraction
from typing import Any

import sympy

from theory import ledger
from theory.losses.draws import rational, seeded
from theory.updates.algorithm1 import anneal as alpha

P, Q, S = sympy.symbols("p q s", positive=True)  # 1 − β1, 1 − r, r^t
B, R, T = sympy.symbols("beta r t", positive=True)


def momenta(steps: int, beta1: Any, alphas: list[Any]) -> list[Any]:
    """m_1, ..., m_steps for the constant gradient 1."""
    m, found = 0 * beta1, []
    for weight in alphas[:steps]:
        m = beta1 * m + weight
        found.append(m)
    return found


def make_schedule(rng: random.Random) -> ledger.Instance:
    """β1, r and a step."""
    return {
        "beta1": rational(rng, 0, Fraction(11, 12), 12),
        "r": rational(rng, Fraction(1, 12), Fraction(11, 12), 12),
        "t": rng.randint(1, 12),
    }


def _alphas(at: ledger.Instance) -> list[Any]:
    return [alpha(s, at["beta1"], at["r"]) for s in range(1, at["t"] + 2)]


# --- ANN-range ----------------------------------------------------------------------------------------------------


def _relative_gain(at: ledger.Instance, one: Fraction) -> ledger.Sides:
    """Annealed over plain momentum of a constant gradient, at step t + 1 and (times one) at step t."""
    annealed = momenta(at["t"] + 1, at["beta1"], _alphas(at))
    plain = momenta(at["t"] + 1, at["beta1"], [1] * (at["t"] + 1))
    ratio = [a / b for a, b in zip(annealed, plain, strict=True)]
    return ratio[-1], one * ratio[-2]


def _alpha_falls(one: Fraction = Fraction(1)) -> bool:
    difference = _rational(one) * ((1 - P) + P * S) - ((1 - P) + P * S * (1 - Q))  # α(t) − α(t+1)
    return sympy.expand(difference - P * Q * S) == 0 and bool((P * Q * S).is_positive)


def _rational(value: Fraction) -> sympy.Rational:
    return sympy.Rational(value.numerator, value.denominator)


def _ratio_falls(off: int = 0) -> bool:
    weight, ratio, new = sympy.symbols("N R alpha", positive=True)  # N = β1 Σ β1^(t−s)
    return sympy.simplify((weight * ratio + new) / (weight + 1) - ratio - (new - ratio) / (weight + 1) - off) == 0


def _functional_agrees() -> str:
    """The shipped schedule against the formula: exp and two products, each right to one ulp, hence 4 u."""
    from helene import functional

    worst = 0.0
    for beta1 in (0.0, 0.5, 0.9, 0.99):
        for t in (1, 7, 100, 5000):
            b = sympy.Rational(beta1)  # the float's exact value
            exact = (b + (1 - b) * sympy.exp(-sympy.Rational(t, 5000))).evalf(40)
            worst = max(worst, abs(float(sympy.Float(functional.anneal(t, beta1, 5000.0), 40) - exact)))
    assert worst <= 4 * 2.0**-53, worst
    return f"largest difference {worst:.1e} (allowed 4·2^-53)"


RANGE = ledger.Claim(
    id="ANN-range",
    place="Section 3.3 (annealing mechanism), Algorithm 1, Anneal",
    statement=r"The anneal $\alpha(t) = \beta_1 + (1-\beta_1)e^{-t/T}$ lowers the learning rate as training goes on.",
    expected=ledger.Verdict.HOLDS,
    answer="It falls with every step, but from 1 to β1 + (1 − β1)/e over the budget: 6 % at β1 = 0.9.",
    constants={"one": ledger.Constant(Fraction(1), Fraction(99, 100))},
    evidence=(
        ledger.Proof(
            text=r"For a constant gradient the annealed momentum is $R_t$ times the plain one, $R_t$ an average of "
            r"$\alpha(1), \dots, \alpha(t)$. α falls, so each new value is below the average before it and pulls it "
            r"down.",
            steps=(
                ledger.Step(r"$\alpha(t) - \alpha(t+1) = (1-\beta_1)\,r^t\,(1-r) > 0$.", _alpha_falls),
                ledger.Step(
                    r"$R_{t+1} - R_t = \frac{\alpha(t+1) - R_t}{N_t + 1}$ with $N_t = \beta_1\sum_s \beta_1^{t-s}$, "
                    r"and $R_t \ge \alpha(t) > \alpha(t+1)$.",
                    _ratio_falls,
                    {"off": 1},
                ),
            ),
        ),
        ledger.Search(
            text="Rational β1, r and up to 12 steps: the ratio of annealed to plain momentum falls at each step.",
            strategy=seeded(make_schedule),
            sides=_relative_gain,
            relation="<",
        ),
        ledger.Check("`helene.functional.anneal` is this formula.", _functional_agrees),
    ),
    note=r"With T the step budget, as Algorithm 1 has it, the whole fall is $(1-\beta_1)(1-1/e)$: 6.3 % at $\beta_1 = "
    r"0.9$, 0.6 % at 0.99. Over the first steps the momentum's own gain rises from 1 towards $1/(1-\beta_1)$, so the "
    r"effective rate first rises tenfold, and ends nine times above that of the exponential average with weight "
    r"$1-β_1$.",
)


# --- ANN-gain -----------------------------------------------------------------------------------------------------


def _distance_from_gain(at: ledger.Instance, early: Fraction, late: Fraction) -> ledger.Sides:
    """|m_t − α(t)/(1 − β1)| and its bound, for the constant gradient 1."""
    b, r, t = at["beta1"], at["r"], at["t"]
    m = momenta(t, b, _alphas(at))[-1]
    return abs(m - alpha(t, b, r) / (1 - b)), early * b**t / (1 - b) + late * b * (1 - r) / (1 - b)


def _closed_form(off: int = 0) -> bool:
    m = B * (1 - B**T) / (1 - B) + (1 - B) * R * (R**T - B**T) / (R - B)
    step = m - (B * m.subs(T, T - 1) + B + (1 - B) * R**T) - off
    return sympy.simplify(step) == 0 and m.subs(T, 0) == 0


def _error_recursion(early: Fraction = Fraction(1)) -> bool:
    """The recursion, and |e_0| for α = 0 within the first term of the bound at t = 0."""
    before, old, new = sympy.symbols("e alpha0 alpha1")  # e_{t−1}, α(t−1), α(t)
    m = B * (before + old / (1 - B)) + new
    recursion = sympy.simplify(m - new / (1 - B) - (B * before + B * (old - new) / (1 - B))) == 0
    return recursion and sympy.simplify(_rational(early) / (1 - B) - 1 / (1 - B)).is_nonnegative is True


def _error_sum(late: Fraction = Fraction(1)) -> bool:
    """The sum of β^(t−s)·β·r^(s−1)(1−r) over s, each term at most β^(t−s)·β(1−r): a geometric series below 1/(1−β)."""
    k = sympy.Symbol("k", positive=True)
    series = (1 - B**k) / (1 - B)
    adds_up = sympy.simplify(series - (B * series.subs(k, k - 1) + 1)) == 0 and series.subs(k, 0) == 0
    return adds_up and sympy.expand(_rational(late) - (1 - B**k)).is_nonnegative is True


GAIN = ledger.Claim(
    id="ANN-gain",
    place="ours, of Algorithm 1, line 7 and Anneal",
    statement=r"For a constant gradient $g$ the momentum settles at $\alpha\, g/(1-\beta_1)$.",
    expected=ledger.Verdict.HOLDS,
    answer="True, within β1ᵗ/(1−β1) + β1/((1−β1)T) of the gradient; in the end the gain is β1/(1−β1), nine at 0.9.",
    constants={
        "early": ledger.Constant(Fraction(1), Fraction(4, 5)),
        "late": ledger.Constant(Fraction(1), Fraction(1, 2)),
    },
    evidence=(
        ledger.Proof(
            text=r"With α constant $m_t = \frac{1-\beta_1^t}{1-\beta_1}\alpha g$. With the anneal, "
            r"$|m_t - \frac{\alpha(t)}{1-\beta_1}g| \le \Big(\frac{\beta_1^t}{1-\beta_1} + "
            r"\frac{\beta_1(1-r)}{1-\beta_1}\Big)|g|$, $1 - r \le 1/T$, and $m_t \to \frac{\beta_1}{1-\beta_1} g$.",
            steps=(
                ledger.Step(
                    r"$m_t/g = \beta_1\frac{1-\beta_1^t}{1-\beta_1} + (1-\beta_1)\,r\,\frac{r^t - \beta_1^t}{r - "
                    r"\beta_1}$ satisfies the recursion from 0, so its limit is $\frac{\beta_1}{1-\beta_1}$.",
                    _closed_form,
                    {"off": 1},
                ),
                ledger.Step(
                    r"The distance $e_t = m_t/g - \alpha(t)/(1-\beta_1)$ obeys "
                    r"$e_t = \beta_1 e_{t-1} + \frac{\beta_1}{1-\beta_1}(\alpha(t-1) - \alpha(t))$, $e_0 = "
                    r"-\frac{1}{1-\beta_1}$.",
                    _error_recursion,
                ),
                ledger.Step(
                    r"$\alpha(s-1) - \alpha(s) = (1-\beta_1) r^{s-1}(1-r) \le (1-\beta_1)(1-r)$, and "
                    r"$\sum_s \beta_1^{t-s} \le \frac{1}{1-\beta_1}$.",
                    _error_sum,
                ),
            ),
        ),
        ledger.Search(
            text="Rational β1, r and up to 12 steps against the bound.",
            strategy=seeded(make_schedule),
            sides=_distance_from_gain,
        ),
    ),
)


# --- ANN-single ---------------------------------------------------------------------------------------------------


def _determined(at: ledger.Instance, one: int) -> ledger.Sides:
    """α(t), and what β1 and the value at step one say that it is."""
    b = at["beta1"]
    r = (alpha(one, b, at["r"]) - b) / (1 - b)
    return alpha(at["t"], b, at["r"]), alpha(at["t"], b, r)


def _one_value_fixes_all(one: int = 1) -> bool:
    first = B + (1 - B) * R**one
    return sympy.simplify((first - B) / (1 - B) - R) == 0


def _two_in_all(off: int = 0) -> bool:
    one, two = 1 - (B + (1 - B) * R), 1 - (B + (1 - B) * R**2)
    return sympy.simplify(two / one - 1 - R - off) == 0


SINGLE = ledger.Claim(
    id="ANN-single",
    place="Section 3.3, last sentence of the first paragraph",
    statement="The anneal needs the tuning of a single hyper-parameter: given the momentum's β1, the horizon T fixes "
    "it.",
    expected=ledger.Verdict.HOLDS,
    answer="Given β1, T is its only parameter; none is left if T is the step budget, as Algorithm 1 has it.",
    constants={"one": ledger.Constant(1, 2)},
    evidence=(
        ledger.Proof(
            text=r"Given β1, one value of α gives $r = \frac{\alpha(1)-\beta_1}{1-\beta_1}$ and so all of them, and "
            r"different r give different schedules. β1 is the momentum's, needed without the anneal too.",
            steps=(
                ledger.Step(r"$\frac{\alpha(1) - \beta_1}{1 - \beta_1} = r$.", _one_value_fixes_all),
                ledger.Step(
                    r"$\frac{1-\alpha(2)}{1-\alpha(1)} = 1 + r$: a schedule tells r, then β1, so they are two "
                    r"parameters where β1 is not given.",
                    _two_in_all,
                    {"off": 1},
                ),
            ),
        ),
        ledger.Search(
            text="Rational β1, r and steps: α(t) recomputed from β1 and α(1) alone.",
            strategy=seeded(make_schedule),
            sides=_determined,
            relation="==",
        ),
    ),
    note="The text calls T a hyper-parameter of the anneal, Algorithm 1 the step budget. β1 is made to serve twice, as "
    "the momentum's memory and as the anneal's end.",
)


CLAIMS = (RANGE, GAIN, SINGLE)
