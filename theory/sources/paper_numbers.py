"""Every number that the paper prints in its tables and about its runs, exactly, each with its place.

The tables' numbers are typed in `helene.lab.paper_tables`. Nothing here is computed; units are percent (accuracy, or F1
for SQuAD) unless a name says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from helene.lab import paper_tables
from helene.lab.paper_tables import MEMORY_GB as MEMORY_GB
from helene.lab.paper_tables import OPT_TASKS, ROBERTA_TASKS, SST2_COLUMNS

TUNINGS = ("FT", "LoRA", "prefix")


@dataclass(frozen=True)
class Cell:
    """One printed entry: its value, whether it is bold, its printed standard deviation or None."""

    value: Fraction
    bold: bool = False
    deviation: Fraction | None = None


def _cells(columns: tuple[str, ...], row: str) -> dict[str, Cell]:
    entries = row.split()
    if len(entries) != len(columns):
        raise ValueError(f"{len(entries)} entries for {len(columns)} columns: {row!r}")
    cells = {}
    for column, entry in zip(columns, entries, strict=True):
        value, _, deviation = entry.partition("±")
        cells[column] = Cell(
            Fraction(value.rstrip("*")), value.endswith("*"), Fraction(deviation) if deviation else None
        )
    return cells


F1_TASKS = ("SQuAD",)

ROBERTA_RUNS = 5
ROBERTA = {name: _cells(ROBERTA_TASKS, row) for name, row in paper_tables.ROBERTA.items()}
OPT = {name: _cells(OPT_TASKS, row) for name, row in paper_tables.OPT.items()}
SST2 = {name: _cells(SST2_COLUMNS, row) for name, row in paper_tables.SST2.items()}
SST2_ZO = tuple(name for name in SST2 if name != "FO-SGD")  # the caption counts Forward-Grad among the ZO methods

TABLES = {"RoBERTa": (ROBERTA, ROBERTA_TASKS), "OPT": (OPT, OPT_TASKS)}

#: Section 5.2, "clear performance advantages": average over the tunings, HELENE less MeZO, in points.
PRINTED_GAINS = {"CB": Fraction("5.3"), "SQuAD": Fraction("2.1"), "COPA": Fraction("1.3")}
#: Abstract, introduction, section 5, conclusion.
PRINTED_AVERAGE_GAIN = Fraction("1.5")
#: Caption of figure 3.
PRINTED_BEST_GAIN = 15
#: Section 5.1, "leading average accuracy of three tuning methods on the dataset".
PRINTED_LEADS = ("SST-2", "SST-5", "MNLI", "RTE")

#: Sections 5.1 and 5.2: steps of runs. The paper prints no step count of MeZO, no seconds and no learning rate.
STEPS = {("RoBERTa", "HELENE"): 5_000, ("RoBERTa", "Adam FT"): 1_000, ("OPT", "HELENE"): 10_000}
SPEEDUP = {"RoBERTa": 20, "OPT": 10, "ablation": 2}

#: Caption of figure 4: validation losses.
VALIDATION_LOSS = {name: Fraction(value) for name, value in {
    "MeZO": "0.426", "Adam": "0.286", "AdamW": "0.351", "Lion": "0.343", "HELENE": "0.283",
}.items()}  # fmt: skip

#: Appendix B.2: floors tried on OPT-1.3B, SST-2, and the loss of accuracy below 1, in points.
FLOORS_STABLE = (Fraction(1), Fraction(3))
FLOOR_BAD, FLOOR_LOSS = Fraction("0.9"), 10

#: Appendix B.3: Sophia's clip, mean losses of the intervals of steps and the ratio of trigger counts.
TRIGGER_INTERVALS = {(400, 800): Fraction("0.57"), (1400, 1800): Fraction("0.65")}
TRIGGER_RATIO = (Fraction("1.18"), Fraction("1.22"))


def pairs(model: str) -> Iterator[tuple[str, str, Cell, Cell]]:
    """(tuning, task, MeZO's cell, HELENE's cell) of a model's table."""
    table, tasks = TABLES[model]
    for tuning in TUNINGS:
        for task in tasks:
            yield tuning, task, table[f"MeZO {tuning}"][task], table[f"HELENE {tuning}"][task]


def mean_over_tunings(model: str, method: str, task: str) -> Fraction:
    """A method's average over full tuning, LoRA and prefix."""
    table, _ = TABLES[model]
    return sum((table[f"{method} {tuning}"][task].value for tuning in TUNINGS), Fraction(0)) / len(TUNINGS)


def best_of_tunings(model: str, method: str, task: str) -> Fraction:
    """A method's best of full tuning, LoRA and prefix."""
    table, _ = TABLES[model]
    return max(table[f"{method} {tuning}"][task].value for tuning in TUNINGS)


def rounded(value: Fraction, digits: int = 1) -> Fraction:
    """The value to so many decimals, halves up, as tables print it."""
    scale = 10**digits
    return Fraction((value * scale + Fraction(1, 2)).__floor__(), scale)
