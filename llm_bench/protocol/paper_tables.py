"""Numbers that the HELENE paper prints, as it prints them (percent; mean and standard deviation where given).

Table 3 has rows, without such numbers, for the other methods that `helene.methods` lists in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from helene.lab import paper_tables
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


_MASKED, _CAUSAL = (
    tuple(task.lower().replace("-", "") for task in tasks)
    for tasks in (paper_tables.ROBERTA_TASKS, paper_tables.OPT_TASKS)
)

_UNTRAINED = {"zero-shot": "zero-shot", "ICL": "icl", "LP": "linear-probe"}
_METHODS = {"Adam": "ft-adam", "ZO-SGD": "mezo"}  # the others by their names in lower case
_TUNINGS = {"FT": "full", "LoRA": "lora", "prefix": "prefix"}
CONTROL: TableRow = ("bias-only", "full")  # ours: one bias a class

# Gigabytes; "three times MeZO" in the text, 14 / 4 = 3.5. Zero-shot is MeZO's.
_MEMORY = {
    "mezo": "MeZO",
    "zero-shot": "MeZO",
    "icl": "ICL",
    "ft-prefix": "prefix FT",
    "ft-full": "FT",
    "helene": "HELENE",
}
MEMORY = {name: float(paper_tables.MEMORY_GB[printed]) for name, printed in _MEMORY.items()}


def _number(text: str) -> Printed:
    mean, _, deviation = text.replace("*", "").partition("±")
    return float(mean), float(deviation) if deviation else None


def _method(name: str) -> str:
    return _METHODS.get(name, name.lower())


def _row(name: str) -> TableRow:
    if name in _UNTRAINED:
        return _UNTRAINED[name], "full"
    method, tuning = name.split()
    return _method(method), _TUNINGS[tuning]


def _parsed(rows: Mapping[str, str], title: str, model: str, kind: Kind, tasks: tuple[str, ...]) -> PaperTable:
    columns = tuple((kind, task) for task in tasks)
    printed = {
        (_row(name), column): _number(number)
        for name, text in rows.items()
        for column, number in zip(columns, text.split(), strict=True)
    }
    names = [_row(name) for name in rows]
    return PaperTable(title, model, (*names[:2], CONTROL, *names[2:]), columns, printed)


def _third() -> PaperTable:
    columns: tuple[tuple[Kind, str], ...] = (("masked", "sst2"), ("causal", "sst2"))
    kinds: dict[str, tuple[Kind, str]] = {"RoBERTa": columns[0], "OPT": columns[1]}
    printed = {}
    for name, text in paper_tables.SST2.items():
        for place, number in zip(paper_tables.SST2_COLUMNS, text.split(), strict=True):
            model, tuning = place.split()
            printed[(_method(name), _TUNINGS[tuning]), kinds[model]] = _number(number)
    methods = dict.fromkeys((*map(_method, paper_tables.SST2), *(entry.name for entry in compared("table 3"))))
    rows = [(method, tuning) for method in methods for tuning in _TUNINGS.values()]
    return PaperTable("SST-2 by method and tuning", "RoBERTa-large, OPT-1.3B", (CONTROL, *rows), columns, printed)


TABLES = {
    "1": _parsed(paper_tables.ROBERTA, "Masked language models, k = 16 a class", "RoBERTa-large", "masked", _MASKED),
    "2": _parsed(paper_tables.OPT, "Causal language models, 1,000 examples", "OPT-1.3B", "causal", _CAUSAL),
    "3": _third(),
}
