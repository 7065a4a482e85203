"""Clipping the curvature: keeping positive entries only, and taking the floor from a quantile."""

from __future__ import annotations

from fractions import Fraction

import sympy

from theory import ledger
from theory.sources.measured import measured

# --- CLIP-positive ------------------------------------------------------------------------------------------------


def _update_curvature(at: ledger.Instance) -> ledger.Sides:
    """max(h, λ) with only the positive entries of h, and with all of them."""
    return max(max(at["h"], 0), at["floor"]), max(at["h"], at["floor"])


def _positive_part(at: ledger.Instance) -> ledger.Sides:
    """The positive part of h and h, for an estimator's value: B ĝ² (A-GNB) or given outright (any other)."""
    h = at["h"] if "h" in at else at["batch"] * at["g"] ** 2
    return max(h, 0), h


def _no_change(least: int = 0) -> bool:
    floor, h = sympy.symbols("lambda h", positive=True)
    cases = (floor + h, floor - floor * h / (1 + h), -h)  # above the floor; between 0 and it; below 0
    return all(
        sympy.simplify(
            sympy.Max(sympy.Max(value, least * (floor + 2 * h)), floor).rewrite(sympy.Abs)
            - sympy.Max(value, floor).rewrite(sympy.Abs)
        )
        == 0
        for value in cases
    )


POSITIVE = ledger.Claim(
    id="CLIP-positive",
    place='Section 3.5, "(1) considering only the positive entries of the diagonal Hessian"',
    statement=r"Keeping only the positive entries of $h$ changes the method that clips with $\max(h, \lambda)$, "
    r"$\lambda > 0$.",
    expected=ledger.Verdict.REFUTED,
    answer="Nothing changes: A-GNB's h is never negative, and a positive floor overrides negative entries anyway.",
    evidence=(
        ledger.Witness(
            text=r"$h = -1$, $\lambda = 1$: $\max(\max(h, 0), \lambda) = 1 = \max(h, \lambda)$. (With a negative λ, "
            r"which '$\lambda_i \in \mathbb{R}$' would allow, it can differ.)",
            instance={"h": -1, "floor": 1},
            sides=_update_curvature,
            recorded=(1, 1),
            harmless={"h": -1, "floor": -2},
            relation="!=",
        ),
        ledger.Witness(
            text=r"It changes at least h itself: $h = B\hat g^2 \ge 0$ has no negative entries to drop. $B = 2$, $\hat "
            r"g = -1$: $\max(2, 0) = 2$. (Hutchinson's estimator can give $-1$.)",
            target=ledger.Target.KINDEST,
            instance={"g": -1, "batch": 2},
            sides=_positive_part,
            recorded=(2, 2),
            harmless={"h": -1},
            relation="!=",
        ),
        ledger.Proof(
            text=r"For $\lambda > 0$: $\max(\max(h, 0), \lambda) = \max(h, \lambda)$ for every real $h$.",
            target=ledger.Target.KINDEST,
            steps=(ledger.Step(r"$h \ge \lambda$, $0 \le h < \lambda$ and $h < 0$.", _no_change, {"least": 1}),),
        ),
    ),
)


# --- CLIP-quantile ------------------------------------------------------------------------------------------------

COMPARISONS_PER_ENTRY = 6
"""Selecting a quantile of n numbers takes at most 5.43 n + o(n) comparisons (Blum et al. 1973), whatever the order."""


def _share_of_step(parameters: int, tokens: int, interval: int) -> Fraction:
    """Comparisons of one selection every ``interval`` steps, over the operations of a step's two forwards.

    A forward takes at least 2 operations a parameter and token.
    """
    return Fraction(COMPARISONS_PER_ENTRY * parameters, interval * 2 * 2 * parameters * tokens)


def _assertion(world: ledger.Instance) -> bool:
    """Too slow: the selection adds a tenth or more to a step's time."""
    return Fraction(world["quantile_seconds"]) / world["interval"] >= Fraction(world["forward_seconds"]) * 2 / 10


_TIMES = ("quantile_seconds", "forward_seconds", "interval")


def _printed(world: ledger.Instance) -> dict[str, bool]:
    """The paper prints no time and no k: nothing but that they are positive."""
    return {f"{name} is positive": world[name] > 0 for name in _TIMES}


QUANTILE = ledger.Claim(
    id="CLIP-quantile",
    place="Appendix B.2, second argument",
    statement="Clipping by percentage (a quantile of h for each layer) is too slow in a zeroth-order setting.",
    expected=ledger.Verdict.NOT_DECIDABLE,
    answer="No time is printed; counted in operations a selection is below 0.2 % of a step of two forwards of 1024 "
    "tokens.",
    evidence=(
        ledger.Missing(
            text="The paper prints no time of a quantile or a step, and no k. With k = 1, a quantile that takes as "
            "long as a forward adds half a step, one that takes a hundredth adds next to nothing.",
            what="seconds of a layer-wise quantile and of a step, on the model and device meant, and k",
            printed=_printed,
            assertion=_assertion,
            true_world=dict.fromkeys(_TIMES, 1),
            impossible={f"{name} is positive": {**dict.fromkeys(_TIMES, 1), name: 0} for name in _TIMES},
            false_world={"quantile_seconds": Fraction(1, 100), "forward_seconds": 1, "interval": 1},
        ),
        ledger.Proof(
            text="A quantile is a selection, linear in the number of entries; no sorting is needed, and it is needed "
            "only when h changes, every k steps.",
            target=ledger.Target.KINDEST,
            steps=(
                ledger.Step(
                    "6 comparisons an entry over 2 · 2 · 1024 operations a parameter, even with k = 1: below 0.2 %.",
                    lambda tokens=1024: _share_of_step(1_315_758_080, tokens, 1) < Fraction(1, 500),
                    {"tokens": 512},
                ),
            ),
        ),
    ),
    note="Comparisons may be slower than multiplications, by memory traffic above all: hence no refutation on counts."
    + measured("CLIP-quantile"),
)


CLAIMS = (POSITIVE, QUANTILE)
