"""The moving average of curvature from h_0 = 0: bias at first, what the first steps are, and the indices of line 10."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction
from typing import Any

import sympy

from theory import ledger
from theory.curvature import moments
from theory.losses.draws import distribution, rational, seeded

# --- ALG-ema ------------------------------------------------------------------------------------------------------


ONE = Fraction(1)


def _average(estimates: tuple[Any, ...], beta2: Any, debiased: bool) -> Any:
    h: Any = Fraction(0)
    for estimate in estimates:
        h = beta2 * h + (1 - beta2) * estimate
    return h / (1 - beta2 ** len(estimates)) if debiased else h


def _squared_errors(at: ledger.Instance, debiased: bool = False, one: Fraction = ONE) -> ledger.Sides:
    """Mean squared error of the average of n independent estimates, by enumeration; one estimate's, times one."""
    centre = moments.mean(at["law"])
    error = Fraction(0)
    for outcome in itertools.product(at["law"], repeat=at["n"]):
        probability = Fraction(1)
        for _, p in outcome:
            probability *= p
        value = _average(tuple(value for value, _ in outcome), at["beta2"], debiased)
        error += probability * (value - centre) ** 2
    return error, one * moments.variance(at["law"])


def _make_law(rng: random.Random) -> ledger.Instance:
    values = [rational(rng, -3, 3) for _ in range(rng.randint(1, 3))]
    return {
        "law": tuple(zip(values, distribution(rng, len(values)), strict=True)),
        "beta2": rational(rng, Fraction(1, 6), Fraction(11, 12)),
        "n": rng.randint(1, 4),
    }


BETA, N = sympy.symbols("beta n", positive=True)


def _mean_and_variance(off: int = 0) -> bool:
    mean = 1 - BETA**N - off
    variance = (1 - BETA) * (1 - BETA ** (2 * N)) / (1 + BETA)
    return (
        sympy.simplify(mean - (BETA * mean.subs(N, N - 1) + 1 - BETA)) == 0
        and sympy.simplify(variance - (BETA**2 * variance.subs(N, N - 1) + (1 - BETA) ** 2)) == 0
        and mean.subs(N, 0) == 0 == variance.subs(N, 0)
    )


def _ratio(one: Fraction = ONE) -> bool:
    q = sympy.Symbol("q", positive=True)  # β^n
    variance = (1 - BETA) * (1 - q**2) / (1 + BETA) / (1 - q) ** 2
    closed = (1 - BETA) * (1 + q) / ((1 + BETA) * (1 - q))
    most = sympy.Rational(one.numerator, one.denominator) * (1 + BETA) * (1 - q)
    excess = sympy.expand(most - (1 - BETA) * (1 + q) - 2 * (BETA - q))
    return sympy.simplify(variance - closed) == 0 and excess == 0


EMA = ledger.Claim(
    id="ALG-ema",
    place="Section 3.2 (EMA of diagonal Hessian estimates), Algorithm 1 lines 2 and 10",
    statement=r"The average $h_t = \beta_2 h_{t-k} + (1-\beta_2)\hat h_t$ from $h_0 = 0$ denoises the estimates $\hat "
    r"h$, early steps included.",
    expected=ledger.Verdict.HOLDS_AFTER_REPAIR,
    answer="After n estimates its mean is (1 − β2ⁿ) of the true one, 1 % at first for β2 = 0.99; divided by that it is "
    "right.",
    constants={"one": ledger.Constant(ONE, Fraction(9, 10))},
    evidence=(
        ledger.Witness(
            text=r"Estimates without any noise, $\hat h = 1$ always, $\beta_2 = \frac12$: $h_1 = \frac12$, mean "
            r"squared error $\frac14$; a single estimate has 0.",
            instance={"law": ((Fraction(1), Fraction(1)),), "beta2": Fraction(1, 2), "n": 1},
            sides=_squared_errors,
            recorded=(Fraction(1, 4), 0),
            harmless={
                "law": ((Fraction(0), Fraction(1, 2)), (Fraction(4), Fraction(1, 2))),
                "beta2": Fraction(1, 2),
                "n": 1,
            },
        ),
        ledger.Proof(
            text=r"For independent estimates of mean μ and variance $v$, $h_n = (1-\beta)\sum_i \beta^{n-i}\hat h_i$ "
            r"has mean $(1-\beta^n)\mu$ and variance $\frac{(1-\beta)(1-\beta^{2n})}{1+\beta}v$. Divided by "
            r"$1-\beta^n$ it is unbiased, with variance $\frac{(1-\beta)(1+\beta^n)}{(1+\beta)(1-\beta^n)}\,v \le v$, "
            r"decreasing in $n$.",
            target=ledger.Target.REPAIRED,
            steps=(
                ledger.Step(
                    "Both satisfy the recursions $E_n = βE_{n-1} + 1-β$, $V_n = β²V_{n-1} + (1-β)²$ from 0.",
                    _mean_and_variance,
                    {"off": 1},
                ),
                ledger.Step(
                    r"The quotient, and $(1+\beta)(1-\beta^n) - (1-\beta)(1+\beta^n) = 2(\beta - \beta^n) \ge 0$ for "
                    r"$n \ge 1$.",
                    _ratio,
                ),
                ledger.Step(r"$\frac{1+q}{1-q}$ increases in $q = \beta^n$, which decreases in $n$."),
            ),
        ),
        ledger.Search(
            text="Laws with up to three rational values, β2 rational, up to four estimates; all outcomes enumerated.",
            target=ledger.Target.REPAIRED,
            strategy=seeded(_make_law),
            sides=lambda at, one: _squared_errors(at, True, one),
        ),
    ),
    repair=r"$h_n/(1 - \beta_2^n)$, $n$ the number of estimates so far, is unbiased, and its variance is at most that "
    r"of one estimate from the first on and decreases with n (independent estimates, a curvature that stands still).",
    note=r"Without the division $h$ is too small by $1 - 0.99^{10} = 9.6\,\%$ after ten estimates; until then the "
    r"floor or very long steps take over (FIRST-step). In the long run the variance falls to $(1-β2)/(1+β2)$ of one "
    r"estimate's.",
)


# --- ALG-index ----------------------------------------------------------------------------------------------------


def _index_read(at: ledger.Instance) -> ledger.Sides:
    """The index t − k that line 10 reads at t, and 0, the least that exists."""
    return at["t"] - at["k"], 0


def _estimate_steps(k: int, steps: int, rest: int = 0) -> list[int]:
    return [t for t in range(1, steps + 1) if (t - 1) % k == rest]


def _loop(at: ledger.Instance, rest: int) -> ledger.Sides:
    """h after a run of lines 8 to 12, and the average that it is meant to be: of the estimates at 1, 1 + k, ..."""
    k, beta2, estimates = at["k"], at["beta2"], at["estimates"]
    h = Fraction(0)
    due = set(_estimate_steps(k, len(estimates), rest))
    for t, estimate in enumerate(estimates, start=1):
        if t in due:
            h = beta2 * h + (1 - beta2) * estimate
    meant = estimates[::k]
    return h, sum(((1 - beta2) * beta2 ** (len(meant) - 1 - i) * value for i, value in enumerate(meant)), Fraction(0))


def _make_loop(rng: random.Random) -> ledger.Instance:
    return {
        "k": rng.randint(1, 6),
        "beta2": rational(rng, 0, Fraction(5, 6)),
        "estimates": tuple(rational(rng, 1, 3) for _ in range(rng.randint(1, 20))),
    }


def _same_steps(rest: int = 0) -> bool:
    """For k from 2 to 64 and every residue r of t: r = 1 exactly if t − 1 leaves 0."""
    return all((r == 1) == ((r - 1) % k == rest) for k in range(2, 65) for r in range(k))


def _functional_agrees() -> str:
    from helene import functional

    for k in range(1, 30):
        due = [t for t in range(1, 200) if functional.is_curvature_step(t, k)]
        assert due == _estimate_steps(k, 199), f"k = {k}"
    return "k = 1, ..., 29 and t = 1, ..., 199: the same steps"


ETA, DENOMINATOR_EPS = sympy.symbols("eta epsilon", positive=True)

INDEX = ledger.Claim(
    id="ALG-index",
    place="Algorithm 1, lines 1, 8, 10 and 14",
    statement=r"$h_{t-k}$, the test $t \bmod k = 1$ and the symbols of Algorithm 1 are well defined for every $k \ge "
    r"1$.",
    expected=ledger.Verdict.HOLDS_AFTER_REPAIR,
    answer="k ≥ 2 reads h with a negative index at t = 1, k = 1 never estimates h; ε and T each stand for two things.",
    constants={"rest": ledger.Constant(0, 1)},
    evidence=(
        ledger.Witness(
            text=r"$k = 2$, $t = 1$ (as $1 \bmod 2 = 1$): line 10 reads $h_{-1}$; the least index set is 0.",
            instance={"k": 2, "t": 1},
            sides=_index_read,
            recorded=(-1, 0),
            harmless={"k": 2, "t": 3},
            relation=">=",
        ),
        ledger.Units(
            text=r"ε decays the weights ($\eta\epsilon$ a pure number) and guards the denominator (the unit of $\gamma "
            r"h$). With η carrying the units that make $\eta\,m/(\gamma h)$ a length, $h = B\hat g \odot \hat g$, they "
            r"differ.",
            lhs=1 / ETA,
            rhs=DENOMINATOR_EPS,
            units={ETA: {"loss": 1}, DENOMINATOR_EPS: {"loss": 2, "theta": -2}},
            recorded=({"loss": -1}, {"loss": 2, "theta": -2}),
            mended=1 / ETA,
        ),
        ledger.Proof(
            text=r"$h$ changes only at the estimates, so the last one is $h_{t-1}$, equal to $h_{t-k}$ wherever that "
            r"exists.",
            target=ledger.Target.REPAIRED,
            steps=(
                ledger.Step(
                    r"For $k \ge 2$: $t \bmod k = 1$ exactly if $(t-1) \bmod k = 0$ (every residue, $k \le 64$).",
                    _same_steps,
                ),
                ledger.Step(
                    r"For any $k$: $t = qk + r$, $0 \le r < k$; $t - 1$ leaves $r - 1$ if $r \ge 1$ and $k - 1$ if $r "
                    r"= 0$, which is 0 only if $r = 1$, or $k = 1$."
                ),
            ),
        ),
        ledger.Search(
            text="k from 1 to 6, runs of up to 20 steps: h against the weighted sum of the estimates at 1, 1 + k, 1 + "
            "2k, ...",
            target=ledger.Target.REPAIRED,
            strategy=seeded(_make_loop),
            sides=_loop,
            relation="==",
        ),
        ledger.Check("`helene.functional.is_curvature_step` takes this reading.", _functional_agrees),
    ),
    repair=r"Estimate when $(t-1) \bmod k = «rest»$; line 10 reads $h_{t-1}$, the last estimate's average, or $h_0 = "
    r"0$. One symbol for the weight decay, another for the denominator; one for the number of steps, another for the "
    r"anneal's horizon.",
    note="$k$ is missing from the list of inputs, ε is in it twice. Line 14 overwrites $θ_t$ after the gradient was "
    "taken.",
)


CLAIMS = (EMA, INDEX)
