"""What a comparison of the paper comes to, in words: which changes to HELENE raise its accuracy beyond noise."""

from __future__ import annotations

import math
from collections.abc import Mapping

from llm_bench.report.cell_numbers import Numbers
from llm_bench.report.compare import CONTROLS, TASKS, lead, of_task
from llm_bench.report.labels import label
from llm_bench.report.ranked import Table, measured
from llm_bench.report.tables import answer as helene_and_mezo

# What the methods of a figure are to HELENE; of another figure they are rivals.
CHANGES = {"ablation": "changed parts", "curvature": "other sources of curvature", "floor": "other floors"}
Row = tuple[str, str]


def answer(table: Table, which: str) -> str:
    """The first lines of a figure's page, a few sentences a task.

    Args:
        table: From `llm_bench.report.tables.collect`.
        which: The figure, of `llm_bench.report.figures.FIGURES`.
    """
    rows = measured(table)
    said = []
    for kind, task in dict.fromkeys((c.kind, c.task) for c in rows):
        found = {row: n for row, n in of_task(rows, kind, task).items() if row[0] not in CONTROLS}
        helene = found.get(("helene", "full"))
        where = f"On {TASKS.get(task, task)} ({kind})"
        if helene is None and which not in CHANGES and found:
            said.append(_ranked(where, found))
        if helene is None or len(found) < 2:
            continue
        variants = {row: n for row, n in found.items() if row[0].startswith("helene-")}
        if which in CHANGES and variants:
            said.append(_of_changes(where, CHANGES[which], variants, helene))
            said += _of_others({row: n for row, n in found.items() if not row[0].startswith("helene")})
        else:
            said.append(_ranked(where, found))
    return " ".join(said) or helene_and_mezo(table)


def _of_changes(where: str, changes: str, variants: Mapping[Row, Numbers], helene: Numbers) -> str:
    leads = {row: lead(n, helene) for row, n in variants.items()}
    better = {row: n for row, n in variants.items() if leads[row].low > 0}
    if all(math.isinf(ahead.low) for ahead in leads.values()):
        return _ranked(f"{where} one seed of a method decides nothing:", {**variants, ("helene", "full"): helene})
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


def _of_others(others: Mapping[Row, Numbers]) -> list[str]:
    if not others:
        return []
    (first, n), *more = others.items()
    return [f"{_name(first)} reaches {', '.join([_percent(n), *_list(dict(more))])}."]


def _ranked(where: str, found: Mapping[Row, Numbers]) -> str:
    (first, best), *more = sorted(found.items(), key=lambda item: -item[1].mean)
    return f"{where} {_name(first)} reaches {', '.join([_percent(best), *_list(dict(more))])}."


def _list(rows: Mapping[Row, Numbers]) -> list[str]:
    return [f"{_name(row)} {_percent(n)}" for row, n in sorted(rows.items(), key=lambda i: -i[1].mean)]


def _percent(n: Numbers) -> str:
    return f"{n.mean:.1f} %" + (" in one run" if len(n.values) == 1 else "")


def _name(row: Row) -> str:
    return label(*row).removeprefix("HELENE, ")
