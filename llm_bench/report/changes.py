"""What a comparison of the paper comes to, in words: which changes to HELENE raise its accuracy beyond noise."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from llm_bench.report.cell_numbers import Numbers
from llm_bench.report.compare import CONTROLS, lead, of_task, task_name
from llm_bench.report.labels import label
from llm_bench.report.ranked import Table, measured
from llm_bench.report.tables import answer as helene_and_mezo

# What the methods of a figure are to HELENE; of another figure they are rivals.
CHANGES = {"ablation": "changed parts", "curvature": "other sources of curvature", "floor": "other floors"}
FEW = 2  # tasks that are told one by one
Row = tuple[str, str]
Rows = Mapping[Row, Numbers]
HELENE: Row = ("helene", "full")


def answer(table: Table, which: str) -> str:
    """The first lines of a figure's page: a few sentences a task, or one a method where tasks are many.

    Args:
        table: From `llm_bench.report.tables.collect`.
        which: The figure, of `llm_bench.report.figures.FIGURES`.
    """
    rows, told = measured(table), dict[str, dict[Row, Numbers]]()
    for kind, task in dict.fromkeys((c.kind, c.task) for c in rows):
        found = {row: n for row, n in of_task(rows, kind, task).items() if row[0] not in CONTROLS}
        has_rivals = len(found) > 1 if HELENE in found else len(found) > 0 and which not in CHANGES
        if has_rivals:
            told[task_name(kind, task)] = found
    compared = {name: found for name, found in told.items() if HELENE in found}
    if len(compared) > FEW:
        return _changes_of_tasks(compared) if which in CHANGES else _first_of_tasks(compared)
    said = []
    for name, found in told.items():
        variants = _variants(found)
        if which in CHANGES and variants:
            said.append(_of_changes(f"On {name}", CHANGES[which], variants, found[HELENE]))
            said += _of_others({row: n for row, n in found.items() if not row[0].startswith("helene")})
        else:
            said.append(_ranked(f"On {name}", found))
    return " ".join(said) or helene_and_mezo(table)


def _variants(found: Rows) -> dict[Row, Numbers]:
    return {row: n for row, n in found.items() if row[0].startswith("helene-")}


def _changes_of_tasks(told: Mapping[str, Rows]) -> str:
    """On which tasks each variant of HELENE is ahead of it beyond noise; one seed decides nothing, so is left out."""
    known: dict[Row, dict[str, bool]] = {}
    for name, found in told.items():
        for row, n in _variants(found).items():
            ahead = lead(n, found[HELENE])
            if math.isfinite(ahead.low):
                known.setdefault(row, {})[name] = ahead.low > 0
    said = []
    for row, tasks in known.items():
        better = [name for name, is_better in tasks.items() if is_better]
        where = f", {', '.join(better)}" if better else ""
        said.append(f"{_name(row)} on {len(better) or 'none'} of {len(tasks)} tasks{where}")
    return f"Ahead of HELENE beyond noise: {'; '.join(said)}." if said else "One seed of a method decides nothing."


def _first_of_tasks(told: Mapping[str, Rows]) -> str:
    """How often each method has the highest mean."""
    first = Counter(max(found, key=lambda row: found[row].mean) for found in told.values())
    counts = ", ".join(f"{_name(row)} on {number}" for row, number in first.most_common())
    return f"The highest mean, beyond noise or not, of {len(told)} tasks: {counts}."


def _of_changes(where: str, changes: str, variants: Rows, helene: Numbers) -> str:
    leads = {row: lead(n, helene) for row, n in variants.items()}
    better = {row: n for row, n in variants.items() if leads[row].low > 0}
    if all(math.isinf(ahead.low) for ahead in leads.values()):
        return _ranked(f"{where} one seed of a method decides nothing:", {**variants, HELENE: helene})
    if not better:
        row, best = max(variants.items(), key=lambda item: item[1].mean)
        return (
            f"{where} none of {len(variants)} {changes} raises HELENE's {helene.mean:.1f} % beyond noise. "
            f"The best of them, {_name(row)}, reaches {best.mean:.1f} %."
        )
    raises = "raises" if len(better) == 1 else "raise"
    return (
        f"{where} {len(better)} of {len(variants)} {changes} {raises} HELENE's {helene.mean:.1f} % beyond noise: "
        f"{', '.join(_list(better))}."
    )


def _of_others(others: Rows) -> list[str]:
    if not others:
        return []
    (first, n), *more = others.items()
    return [f"{_name(first)} reaches {', '.join([_percent(n), *_list(dict(more))])}."]


def _ranked(where: str, found: Rows) -> str:
    (first, best), *more = sorted(found.items(), key=lambda item: -item[1].mean)
    return f"{where} {_name(first)} reaches {', '.join([_percent(best), *_list(dict(more))])}."


def _list(rows: Rows) -> list[str]:
    return [f"{_name(row)} {_percent(n)}" for row, n in sorted(rows.items(), key=lambda i: -i[1].mean)]


def _percent(n: Numbers) -> str:
    return f"{n.mean:.1f} %" + (" in one run" if len(n.values) == 1 else "")


def _name(row: Row) -> str:
    return label(*row).removeprefix("HELENE, ")
