"""Numbers that the HELENE paper prints, as it prints them (percent; mean and standard deviation where given).

Table 3 has rows, without such numbers, for the other methods that `helene.methods` lists in it.
"""

from __future__ import annotations

from dataclasses import dataclass

from helene.methods import compared
from llm_bench.tasks.task import Kind

TableRow = tuple[str, str]  # method, tuning; untrained rows have tuning "full"
Printed = tuple[float, float | None]


@dataclass(frozen=True)
class PaperTable:
    """One table.

    Attributes:
        title: What it shows.
        model: Of the paper.
        rows: (method, tuning) in the paper's order, then those that it does not print.
        columns: (kind, task, tuning or None for the row's own).
        printed: By row and column.
    """

    title: str
    model: str
    rows: tuple[TableRow, ...]
    columns: tuple[tuple[Kind, str], ...]
    printed: dict[tuple[TableRow, tuple[Kind, str]], Printed]


_MASKED = ("sst2", "sst5", "snli", "mnli", "rte", "trec")
_CAUSAL = ("sst2", "rte", "cb", "boolq", "wsc", "wic", "copa", "record", "squad")

_TABLE_1 = """
zero-shot full 79.0 35.5 50.2 48.8 51.4 32.0
linear-probe full 76.0±2.8 40.3±1.9 66.0±2.7 56.5±2.5 59.4±5.3 51.3±5.5
ft-adam full 91.9±1.8 46.7±1.9 77.5±2.6 70.0±2.3 66.4±7.2 85.0±2.5
ft-adam lora 91.4±1.7 46.7±1.1 74.9±4.3 67.7±1.4 66.1±3.5 82.7±4.1
ft-adam prefix 91.9±1.0 47.7±1.1 77.2±1.3 66.5±2.5 66.6±2.0 85.7±1.3
mezo full 90.5±1.2 45.5±2.0 68.5±3.9 58.7±2.5 64.0±3.3 76.9±2.7
mezo lora 91.4±0.9 43.0±1.6 69.7±6.0 64.0±2.5 64.9±3.6 73.1±6.5
mezo prefix 90.8±1.7 45.8±2.0 71.6±2.5 63.4±1.8 65.4±3.9 80.3±3.6
helene full 91.6±2.3 44.7±0.8 70.0±2.6 58.9±1.1 65.7±1.2 78.1±1.5
helene lora 90.6±0.3 41.8±1.0 68.5±2.0 59.0±1.1 66.8±3.2 67.4±2.1
helene prefix 91.7±0.6 46.0±0.7 69.5±1.9 64.6±2.1 66.1±1.8 77.4±2.1
"""
_TABLE_2 = """
zero-shot full 53.4 53.1 37.5 45.7 44.2 57.0 75.0 70.3 27.1
icl full 80.3 53.1 48.2 58.5 44.2 50.6 69.0 71.0 59.0
linear-probe full 80.3 52.7 44.6 58.9 47.1 50.6 69.0 71 75.9
mezo full 89.6 55.8 77.0 59.6 55.0 58.0 74.0 60.0 62.2
mezo lora 90.8 63.0 78.0 67.2 51.2 58.0 79.0 59.8 67.6
mezo prefix 92.4 52.8 66.0 61.6 51.6 52.8 74.0 56.8 56.0
helene full 91.2 64.4 87.0 60.8 55.4 58.4 69.0 55.6 63.8
helene lora 91.4 50.6 76 64.0 49.6 52.6 82.0 60.2 60.4
helene prefix 92.4 51.6 74.0 62.5 52 57.2 80.0 58.8 68.4
ft-adam full 90.8 73.4 77 70.2 53 60.2 81.0 59.6 70.9
"""
# Columns: masked full, LoRA, prefix; causal full, LoRA, prefix.
_TABLE_3 = """
fo-sgd 91.4 91.2 89.6 91.1 93.6 93.1
forward-grad 90.1 89.7 89.5 90.3 90.3 90.0
mezo 89.4 90.8 90.0 90.8 90.1 91.4
zo-sgd-mmt 89.6 90.9 90.1 85.2 91.3 91.2
zo-sgd-cons 89.6 91.6 90.1 88.3 90.5 81.8
zo-sgd-sign 52.5 90.2 53.6 87.2 91.5 89.5
zo-adam 89.8 89.5 90.2 84.4 92.3 91.4
helene 91.1 90.6 91.7 90.8 91.4 92.4
"""
CONTROL: TableRow = ("bias-only", "full")  # ours: one offset a class

# OPT-1.3B, gigabytes, section on memory; "three times MeZO" in the text, 14 / 4 = 3.5.
MEMORY = {"mezo": 4.0, "zero-shot": 4.0, "icl": 6.0, "ft-prefix": 19.0, "ft-full": 27.0, "helene": 14.0}


def _number(text: str) -> Printed:
    mean, _, deviation = text.partition("±")
    return float(mean), float(deviation) if deviation else None


def _parsed(text: str, title: str, model: str, kind: Kind, tasks: tuple[str, ...]) -> PaperTable:
    columns = tuple((kind, task) for task in tasks)
    rows: list[TableRow] = []
    printed = {}
    for line in text.strip().splitlines():
        method, tuning, *numbers = line.split()
        rows.append((method, tuning))
        for column, number in zip(columns, numbers, strict=True):
            printed[(method, tuning), column] = _number(number)
    return PaperTable(title, model, (*rows[:2], CONTROL, *rows[2:]), columns, printed)


def _third() -> PaperTable:
    columns: tuple[tuple[Kind, str], ...] = (("masked", "sst2"), ("causal", "sst2"))
    rows: list[TableRow] = []
    printed = {}
    for line in _TABLE_3.strip().splitlines():
        method, *numbers = line.split()
        for place, tuning in enumerate(("full", "lora", "prefix")):
            rows.append((method, tuning))
            for column, number in zip(columns, (numbers[place], numbers[3 + place]), strict=True):
                printed[(method, tuning), column] = _number(number)
    more = [entry.name for entry in compared("table 3")]
    rows += [(name, tuning) for name in more if (name, "full") not in rows for tuning in ("full", "lora", "prefix")]
    return PaperTable("SST-2 by method and tuning", "RoBERTa-large, OPT-1.3B", (CONTROL, *rows), columns, printed)


TABLES = {
    "1": _parsed(_TABLE_1, "Masked language models, k = 16 a class", "RoBERTa-large", "masked", _MASKED),
    "2": _parsed(_TABLE_2, "Causal language models, 1,000 examples", "OPT-1.3B", "causal", _CAUSAL),
    "3": _third(),
}
