"""Every number that the paper prints in its tables and about its runs, once, each with its place.

Transcribed from the LaTeX source, as strings where trailing zeros matter to rounding. Nothing here is computed; units
are percent (accuracy, or F1 for SQuAD) unless a name says otherwise. ``*`` after a number marks bold type.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

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


ROBERTA_TASKS = ("SST-2", "SST-5", "SNLI", "MNLI", "RTE", "TREC")
OPT_TASKS = ("SST-2", "RTE", "CB", "BoolQ", "WSC", "WIC", "COPA", "ReCoRD", "SQuAD")
F1_TASKS = ("SQuAD",)

#: Table 1 (label tab:roberta_k16): RoBERTa-large, k = 16, mean ± standard deviation over 5 runs. Bold as printed.
ROBERTA_RUNS = 5
ROBERTA = {
    name: _cells(ROBERTA_TASKS, row)
    for name, row in {
        "zero-shot": "79.0 35.5 50.2 48.8 51.4 32.0",
        "LP": "76.0±2.8 40.3±1.9 66.0±2.7 56.5±2.5 59.4±5.3 51.3±5.5",
        "Adam FT": "91.9±1.8 46.7±1.9 77.5±2.6 70.0±2.3 66.4±7.2 85.0±2.5",
        "Adam LoRA": "91.4±1.7 46.7±1.1 74.9±4.3 67.7±1.4 66.1±3.5 82.7±4.1",
        "Adam prefix": "91.9±1.0 47.7±1.1 77.2±1.3 66.5±2.5 66.6±2.0 85.7±1.3",
        "MeZO FT": "90.5±1.2 45.5±2.0 68.5±3.9 58.7±2.5 64.0±3.3 76.9±2.7",
        "MeZO LoRA": "91.4±0.9 43.0±1.6 69.7±6.0 64.0±2.5 64.9±3.6 73.1±6.5",
        "MeZO prefix": "90.8±1.7 45.8±2.0 71.6±2.5 63.4±1.8 65.4±3.9 80.3±3.6",
        "HELENE FT": "91.6*±2.3 44.7±0.8 70.0*±2.6 58.9*±1.1 65.7*±1.2 78.1*±1.5",
        "HELENE LoRA": "90.6±0.3 41.8±1.0 68.5±2.0 59.0±1.1 66.8*±3.2 67.4±2.1",
        "HELENE prefix": "91.7*±0.6 46.0*±0.7 69.5±1.9 64.6*±2.1 66.1*±1.8 77.4±2.1",
    }.items()
}

#: Table 2 (label tab:opt_results): OPT-1.3B, 1000 examples, one run. "Adam FT" is its last row, "FT (12x memory)".
OPT = {
    name: _cells(OPT_TASKS, row)
    for name, row in {
        "zero-shot": "53.4 53.1 37.5 45.7 44.2 57.0 75.0 70.3 27.1",
        "ICL": "80.3 53.1 48.2 58.5 44.2 50.6 69.0 71.0 59.0",
        "LP": "80.3 52.7 44.6 58.9 47.1 50.6 69.0 71 75.9",
        "MeZO FT": "89.6 55.8 77.0 59.6 55.0 58.0 74.0 60.0 62.2",
        "MeZO LoRA": "90.8 63.0 78.0 67.2 51.2 58.0 79.0 59.8 67.6",
        "MeZO prefix": "92.4 52.8 66.0 61.6 51.6 52.8 74.0 56.8 56.0",
        "HELENE FT": "91.2* 64.4* 87.0* 60.8* 55.4* 58.4* 69.0 55.6 63.8*",
        "HELENE LoRA": "91.4* 50.6 76 64.0 49.6 52.6 82.0* 60.2* 60.4",
        "HELENE prefix": "92.4* 51.6 74.0* 62.5* 52* 57.2* 80.0* 58.8* 68.4*",
        "Adam FT": "90.8 73.4 77 70.2 53 60.2 81.0 59.6 70.9",
    }.items()
}

#: Table 3 (label tab:revisiting): SST-2; the rows but HELENE's are quoted by the paper from elsewhere.
SST2_COLUMNS = ("RoBERTa FT", "RoBERTa LoRA", "RoBERTa prefix", "OPT FT", "OPT LoRA", "OPT prefix")
SST2 = {
    name: _cells(SST2_COLUMNS, row)
    for name, row in {
        "FO-SGD": "91.4 91.2 89.6 91.1 93.6 93.1",
        "Forward-Grad": "90.1 89.7 89.5 90.3 90.3 90.0",
        "ZO-SGD": "89.4 90.8 90.0 90.8 90.1 91.4",
        "ZO-SGD-MMT": "89.6 90.9 90.1 85.2 91.3 91.2",
        "ZO-SGD-Cons": "89.6 91.6* 90.1 88.3 90.5 81.8",
        "ZO-SGD-Sign": "52.5 90.2 53.6 87.2 91.5 89.5",
        "ZO-Adam": "89.8 89.5 90.2 84.4 92.3* 91.4",
        "HELENE": "91.1* 90.6 91.7* 90.8* 91.4 92.4*",
    }.items()
}
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

#: Appendix, Limitations: GB for OPT-1.3B, and the factor claimed; Table 2's last row has the other factor.
MEMORY_GB = {"MeZO": 4, "ICL": 6, "HELENE": 14, "prefix FT": 19, "FT": 27}

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
