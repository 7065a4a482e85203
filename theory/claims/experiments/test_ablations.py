"""Ablations and Sophia's clip: what the source prints of them decides none; two worlds show it.

As in ``test_speed.py``, a world is what a lab notebook would hold; ``printed`` compares it with everything that the
paper prints about it. The figures' images are not in the source.
"""

from __future__ import annotations

from fractions import Fraction

from theory import ledger
from theory.sources import paper_numbers as paper
from theory.sources.measured import measured

# --- ABL ----------------------------------------------------------------------------------------------------------


def _floor_ratio(h: Fraction, low: Fraction, high: Fraction) -> Fraction:
    """How much longer a coordinate's step is with the lower floor, denominator_eps = 0 (with it, less)."""
    return max(h, high) / max(h, low)


def _floors_printed(world: ledger.Instance) -> dict[str, bool]:
    """Runs with floors from 1 to 3 that are stable, and one with 0.9 that loses ten points."""
    at = world["accuracy"]
    stable = [at[floor] for floor in at if floor >= paper.FLOORS_STABLE[0]]
    return {
        "floors from 1 to 3": set(paper.FLOORS_STABLE) <= set(at),
        "stable": max(stable) - min(stable) <= 1,
        "0.9 loses ten points": round(max(stable) - at[paper.FLOOR_BAD]) == paper.FLOOR_LOSS,
    }


def _floors_assertion(world: ledger.Instance) -> bool:
    """The gap is the floor's doing: it exceeds three times the spread between seeds at one floor."""
    at = world["accuracy"]
    gap = min(at[floor] for floor in at if floor >= paper.FLOORS_STABLE[0]) - at[paper.FLOOR_BAD]
    return gap >= paper.FLOOR_LOSS and gap > 3 * world["spread_between_seeds"]


def _floors(bad: int, one: int, three: int) -> ledger.Instance:
    accuracy = {paper.FLOOR_BAD: bad, paper.FLOORS_STABLE[0]: one, paper.FLOORS_STABLE[1]: three}
    return {"accuracy": accuracy, "spread_between_seeds": 1}


_RUNS = _floors(81, 91, 91)

FLOOR = ledger.Claim(
    id="ABL-floor",
    place="Appendix B.2 and figure 6 (OPT-1.3B, SST-2)",
    statement="Floors λ from 1 to 3 are stable; λ = 0.9 loses ten points, so that the bad curvatures lie below 1.",
    expected=ledger.Verdict.NOT_DECIDABLE,
    answer="One run a floor and no spread: the same ten points may be a seed's. 0.9 for 1 lengthens steps by 11 % at "
    "most.",
    evidence=(
        ledger.Missing(
            text="Runs with 91, 91 and 81 % agree with the text; whether the floor did it depends on the spread "
            "between seeds, which is not printed: 1 point in one world, 10 in the other.",
            what="several seeds a floor, the step size, the share of coordinates with h between 0.9 and 1",
            printed=_floors_printed,
            assertion=_floors_assertion,
            true_world=_RUNS,
            false_world={**_RUNS, "spread_between_seeds": 10},
            impossible={
                "floors from 1 to 3": {**_RUNS, "accuracy": {paper.FLOOR_BAD: 81, paper.FLOORS_STABLE[0]: 91}},
                "stable": _floors(81, 91, 86),
                "0.9 loses ten points": _floors(90, 91, 91),
            },
        ),
        ledger.Proof(
            text=r"What the floor can do: for the same $m$ and $h$, with λ = 0.9 in place of 1 a coordinate's step "
            r"grows by the factor $\frac{\max(h,1)}{\max(h,0.9)} \le \frac{10}{9}$; from 3 to 1 it may grow threefold.",
            target=ledger.Target.KINDEST,
            steps=(
                ledger.Step(
                    r"$h \ge 1$: factor 1. $0.9 \le h \le 1$: factor $1/h \le \frac{10}{9}$. $h \le 0.9$: factor "
                    r"$\frac{10}{9}$. The ends of the three pieces, exactly:",
                    lambda low=paper.FLOOR_BAD: (
                        [_floor_ratio(h, low, Fraction(1)) for h in (Fraction(0), low, Fraction(1))]
                        == [Fraction(10, 9), Fraction(10, 9), 1]
                    ),
                    {"low": Fraction(4, 5)},
                ),
                ledger.Step(
                    "At $h = 0$, from floor 3 to floor 1: factor 3.",
                    lambda h=Fraction(0): _floor_ratio(h, *paper.FLOORS_STABLE) == 3,
                    {"h": Fraction(2)},
                ),
            ),
        ),
    ),
    note=(
        "The floor has the units of h, so that 1 means something else for another batch size or loss (ALG-lambda, "
        "GNB-scale). Where h stays below the floor everywhere, the ablation compares step sizes of momentum MeZO "
        "(ALG-reduce)."
    )
    + measured("ABL-floor"),
)


def _order(world: ledger.Instance) -> bool:
    """Momentum does not help beyond noise, and each later part does."""
    mezo, momentum, biased, annealed, helene = (world["final_loss"][name] for name in _PARTS)
    noise = world["noise"]
    return abs(mezo - momentum) <= noise and biased - annealed > noise and annealed - helene > noise


_PARTS = ("MeZO", "+ momentum", "+ bias", "+ anneal", "+ clipped Hessian")


def _order_printed(world: ledger.Instance) -> dict[str, bool]:
    loss = [world["final_loss"][name] for name in _PARTS]
    return {
        "momentum alone does not improve": loss[1] >= loss[0],
        "bias ends with a higher loss": loss[2] > loss[1],
        "the anneal mends it": loss[3] < loss[2],
        "the clipped Hessian improves": loss[4] < loss[3],
    }


def _losses(*tenths: int) -> ledger.Instance:
    """End losses of the five variants, in tenths."""
    return {"final_loss": dict(zip(_PARTS, (Fraction(n, 10) for n in tenths), strict=True)), "noise": Fraction(1, 20)}


ORDER = ledger.Claim(
    id="ABL-order",
    place="Appendix B.1 and figure 5",
    statement="Momentum alone does not improve MeZO; biased momentum speeds it up and later raises the loss; the "
    "anneal and the clipped Hessian mend that.",
    expected=ledger.Verdict.NOT_DECIDABLE,
    answer="The figure is missing, and a part's effect can't be told from that of the step size that came with it.",
    evidence=(
        ledger.Missing(
            text="Curves in the order of the text agree with it; whether the parts made the order depends on the noise "
            "between runs and on each variant's tuning, which are not printed.",
            what="the curves of figure 5, seeds, and the tuned step size of each variant",
            printed=_order_printed,
            assertion=_order,
            true_world=_losses(5, 5, 6, 4, 3),
            false_world={**_losses(5, 5, 6, 4, 3), "noise": Fraction(1)},
            impossible={
                "momentum alone does not improve": _losses(5, 4, 6, 4, 3),
                "bias ends with a higher loss": _losses(5, 5, 5, 4, 3),
                "the anneal mends it": _losses(5, 5, 6, 7, 3),
                "the clipped Hessian improves": _losses(5, 5, 6, 4, 5),
            },
        ),
    ),
    note=(
        r"Momentum with $\alpha = 1$ has the gain $1/(1-\beta_1)$, ten at $\beta_1 = 0.9$ (ANN-gain): at an "
        r"unchanged learning rate it is a tenfold step, which alone explains faster progress followed by a rising loss."
    )
    + measured("ABL-order"),
)


# --- SOPHIA-trigger -----------------------------------------------------------------------------------------------


def _trigger_printed(world: ledger.Instance) -> dict[str, bool]:
    low, high = world["clipped"][400, 800], world["clipped"][1400, 1800]
    return {
        "1.18 to 1.22 times as often": paper.TRIGGER_RATIO[0] <= Fraction(high, low) <= paper.TRIGGER_RATIO[1],
        "mean losses 0.57 and 0.65": world["loss"] == paper.TRIGGER_INTERVALS,
    }


def _trigger_assertion(world: ledger.Instance) -> bool:
    """Over-triggering goes with the loss: with the loss of step 600 at step 1600 there would be no excess."""
    return world["ratio_at_equal_loss"] == 1


_COUNTS = {(400, 800): 100, (1400, 1800): 120}
_TRIGGERED = {"clipped": _COUNTS, "loss": paper.TRIGGER_INTERVALS, "ratio_at_equal_loss": 1}

TRIGGER = ledger.Claim(
    id="SOPHIA-trigger",
    place="Appendix B.3",
    statement="Sophia's clip triggers 1.18 to 1.22 times as often in steps 1400 to 1800 (mean loss 0.65) as in 400 to "
    "800 (0.57); so it is over-triggered where the loss is higher, which can prevent convergence.",
    expected=ledger.Verdict.NOT_DECIDABLE,
    answer="Two intervals differ in loss and in time alike, and the counts, the clip and the model are not printed.",
    evidence=(
        ledger.Missing(
            text="Counts of 100 and 120 agree with the text. Whether loss or time made the difference is open: in one "
            "world a run with the loss held equal shows no excess, in the other the same 1.2.",
            what="the counts, the number of entries, the clip's constants, and a run in which loss and time are apart",
            printed=_trigger_printed,
            assertion=_trigger_assertion,
            true_world=_TRIGGERED,
            false_world={**_TRIGGERED, "ratio_at_equal_loss": Fraction(6, 5)},
            impossible={
                "1.18 to 1.22 times as often": {**_TRIGGERED, "clipped": {(400, 800): 100, (1400, 1800): 150}},
                "mean losses 0.57 and 0.65": {**_TRIGGERED, "loss": dict.fromkeys(_COUNTS, Fraction("0.57"))},
            },
        ),
    ),
    note=(
        "The sparser the clip, the more a ratio of counts varies by chance; whether 18 % more of few is "
        "over-triggering is not said."
    )
    + measured("SOPHIA-trigger"),
)


CLAIMS = (FLOOR, ORDER, TRIGGER)
