"""Ablations and Sophia's clip: what the source prints of them decides none; two worlds show it.

As in ``test_speed.py``, a world is what a lab notebook would hold; ``consistent`` compares it with everything that the
paper prints about it. The figures' images are not in the source.
"""

from __future__ import annotations

from fractions import Fraction

from theory.ledger.claim import Claim, Instance, Missing, Proof, Step, Target, Verdict
from theory.sources import paper_numbers as paper
from theory.sources.measured import measured

# --- ABL ----------------------------------------------------------------------------------------------------------


def _floor_ratio(h: Fraction, low: Fraction, high: Fraction) -> Fraction:
    """How much longer a coordinate's step is with the lower floor, denominator_eps = 0 (with it, less)."""
    return max(h, high) / max(h, low)


def _floors_consistent(world: Instance) -> bool:
    """One run per floor is all that the figure is said to hold."""
    return len(world["accuracy"]) == 3 and paper.FLOOR_BAD in world["accuracy"]


def _floors_assertion(world: Instance) -> bool:
    """The gap is the floor's doing: it exceeds three times the spread between seeds at one floor."""
    at = world["accuracy"]
    low, high = (at[floor] for floor in paper.FLOORS_STABLE)
    gap = min(low, high) - at[paper.FLOOR_BAD]
    return gap >= paper.FLOOR_LOSS and gap > 3 * world["spread_between_seeds"]


_RUNS = {paper.FLOOR_BAD: Fraction(81), paper.FLOORS_STABLE[0]: Fraction(91), paper.FLOORS_STABLE[1]: Fraction(91)}

FLOOR = Claim(
    id="ABL-floor",
    place="Appendix B.2 and figure 6 (OPT-1.3B, SST-2)",
    statement="Floors λ from 1 to 3 are stable; λ = 0.9 loses ten points, so that the bad curvatures lie below 1.",
    expected=Verdict.NOT_DECIDABLE,
    answer="One run a floor and no spread: the same ten points may be a seed's. 0.9 for 1 lengthens steps by 11 % at "
    "most.",
    evidence=(
        Missing(
            text="Runs with 91, 91 and 81 % agree with the text; whether the floor did it depends on the spread "
            "between seeds, which is not printed: 1 point in one world, 10 in the other.",
            what="several seeds a floor, the step size, the share of coordinates with h between 0.9 and 1",
            consistent=_floors_consistent,
            assertion=_floors_assertion,
            true_world={"accuracy": _RUNS, "spread_between_seeds": 1},
            false_world={"accuracy": _RUNS, "spread_between_seeds": 10},
        ),
        Proof(
            text=r"What the floor can do: for the same $m$ and $h$, with λ = 0.9 in place of 1 a coordinate's step "
            r"grows by the factor $\frac{\max(h,1)}{\max(h,0.9)} \le \frac{10}{9}$; from 3 to 1 it may grow threefold.",
            target=Target.KINDEST,
            steps=(
                Step(
                    r"$h \ge 1$: factor 1. $0.9 \le h \le 1$: factor $1/h \le \frac{10}{9}$. $h \le 0.9$: factor "
                    r"$\frac{10}{9}$. The ends of the three pieces, exactly:",
                    lambda: (
                        [
                            _floor_ratio(h, paper.FLOOR_BAD, Fraction(1))
                            for h in (Fraction(0), paper.FLOOR_BAD, Fraction(1))
                        ]
                        == [Fraction(10, 9), Fraction(10, 9), 1]
                    ),
                ),
                Step(
                    "At $h = 0$, from floor 3 to floor 1: factor 3.",
                    lambda: _floor_ratio(Fraction(0), *paper.FLOORS_STABLE) == 3,
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


def _order(world: Instance) -> bool:
    """Momentum does not help beyond noise, and each later part does."""
    mezo, momentum, biased, annealed, helene = (world["final_loss"][name] for name in _PARTS)
    noise = world["noise"]
    return abs(mezo - momentum) <= noise and biased - annealed > noise and annealed - helene > noise


_PARTS = ("MeZO", "+ momentum", "+ bias", "+ anneal", "+ clipped Hessian")
_LOSSES = dict(zip(_PARTS, (Fraction(n, 10) for n in (5, 5, 6, 4, 3)), strict=True))


def _order_printed(world: Instance) -> bool:
    loss = [world["final_loss"][name] for name in _PARTS]
    return loss[1] >= loss[0] and loss[2] > loss[1] and loss[3] < loss[2] and loss[4] < loss[3]


ORDER = Claim(
    id="ABL-order",
    place="Appendix B.1 and figure 5",
    statement="Momentum alone does not improve MeZO; biased momentum speeds it up and later raises the loss; the "
    "anneal and the clipped Hessian mend that.",
    expected=Verdict.NOT_DECIDABLE,
    answer="The figure is missing, and a part's effect can't be told from that of the step size that came with it.",
    evidence=(
        Missing(
            text="Curves in the order of the text agree with it; whether the parts made the order depends on the noise "
            "between runs and on each variant's tuning, which are not printed.",
            what="the curves of figure 5, seeds, and the tuned step size of each variant",
            consistent=_order_printed,
            assertion=_order,
            true_world={"final_loss": _LOSSES, "noise": Fraction(1, 20)},
            false_world={"final_loss": _LOSSES, "noise": Fraction(1)},
        ),
    ),
    note=(
        r"Momentum with $\alpha = 1$ has the gain $1/(1-\beta_1)$, ten at $\beta_1 = 0.9$ (ANN-gain): at an "
        r"unchanged learning rate it is a tenfold step, which alone explains faster progress followed by a rising loss."
    )
    + measured("ABL-order"),
)


# --- SOPHIA-trigger -----------------------------------------------------------------------------------------------


def _trigger_consistent(world: Instance) -> bool:
    low, high = world["clipped"][400, 800], world["clipped"][1400, 1800]
    return (
        paper.TRIGGER_RATIO[0] <= Fraction(high, low) <= paper.TRIGGER_RATIO[1]
        and world["loss"] == paper.TRIGGER_INTERVALS
    )


def _trigger_assertion(world: Instance) -> bool:
    """Over-triggering goes with the loss: with the loss of step 600 at step 1600 there would be no excess."""
    return world["ratio_at_equal_loss"] == 1


_COUNTS = {(400, 800): 100, (1400, 1800): 120}

TRIGGER = Claim(
    id="SOPHIA-trigger",
    place="Appendix B.3",
    statement="Sophia's clip triggers 1.18 to 1.22 times as often in steps 1400 to 1800 (mean loss 0.65) as in 400 to "
    "800 (0.57); so it is over-triggered where the loss is higher, which can prevent convergence.",
    expected=Verdict.NOT_DECIDABLE,
    answer="Two intervals differ in loss and in time alike, and the counts, the clip and the model are not printed.",
    evidence=(
        Missing(
            text="Counts of 100 and 120 agree with the text. Whether loss or time made the difference is open: in one "
            "world a run with the loss held equal shows no excess, in the other the same 1.2.",
            what="the counts, the number of entries, the clip's constants, and a run in which loss and time are apart",
            consistent=_trigger_consistent,
            assertion=_trigger_assertion,
            true_world={"clipped": _COUNTS, "loss": paper.TRIGGER_INTERVALS, "ratio_at_equal_loss": 1},
            false_world={
                "clipped": _COUNTS,
                "loss": paper.TRIGGER_INTERVALS,
                "ratio_at_equal_loss": Fraction(6, 5),
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
