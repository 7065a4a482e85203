"""Figures from records: curves, performance profiles, and the paper's comparisons of methods."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from helene.lab.report import pages
from helene.lab.runs.store import Record
from helene.methods import compared
from llm_bench.protocol.plan import Cell
from llm_bench.report.cell_numbers import target_of
from llm_bench.report.compare import CONTROLS, task_name
from llm_bench.report.labels import TUNING_LABELS, label
from llm_bench.report.ranked import Table
from llm_bench.tasks import get_task

if TYPE_CHECKING:
    from helene.lab.report.figures import Drawing, Line

# Which methods each figure of the paper compares.
FIGURES = {
    "curves": ("mezo", "helene"),
    **{name: tuple(entry.name for entry in compared(name)) for name in ("newton", "optimizers")},
    "ablation": (
        "mezo",
        "zo-sgd-mmt",
        "helene-no-momentum",
        "helene-no-anneal",
        "helene-no-curvature",
        "helene-scalar-h",
        "helene-corrected",
        "helene",
    ),
    "curvature": ("mezo", "helene", "helene-own-batch", "helene-backprop", "helene-no-curvature"),
    "groups": ("mezo", "mezo-grouped", "mezo-grouped-4", "mezo-grouped-16", "zo-sgd-mmt", "zo-adam", "fzoo"),
    "floor": ("mezo", "helene-floor-0.9", "helene", "helene-floor-2", "helene-floor-3"),
}
# Methods that a figure shows beside those that it is about.
BESIDE = {"ablation": ("zo-sgd-mmt",), "groups": ("zo-sgd-mmt", "zo-adam", "fzoo")}
# Methods that a figure is about.
OWN = {name: {*shown} - {"mezo", "helene", *BESIDE.get(name, ())} for name, shown in FIGURES.items()}
TITLES = {
    "curves": "Curves of MeZO and HELENE",
    "newton": "HELENE, Sophia and Newton",
    "optimizers": "Validation losses of zeroth-order optimizers",
    "ablation": "HELENE's parts, one changed at a time",
    "curvature": "Where HELENE's curvature comes from",
    "groups": "A direction for each group of the batch",
    "floor": "HELENE's floor",
}


FIRST = ("mezo", "helene")  # drawn first
MOST_BANDS = 3  # more of them overlap to one grey, so that only those of `FIRST` are drawn
Place = tuple[str, str, str]  # kind, task and tuning: what one figure shows


def with_own_runs(table: Table, which: str) -> tuple[Table, list[str]]:
    """The tasks on which a method that a figure is about was tested or failed, all where there is none; the rest named.

    Args:
        table: From `llm_bench.report.tables.collect`.
        which: The figure, of `FIGURES`.
    """
    known = {c for c, (what, _) in table.items() if c.method in OWN[which] and (what.tests or what.failed)}
    tasks = {(cell.kind, cell.task) for cell in known or table}
    shown = {cell: value for cell, value in table.items() if (cell.kind, cell.task) in tasks}
    left_out = dict.fromkeys(_named((c.kind, c.task, "full")) for c in table if c not in shown)
    return shown, list(left_out)


def curves(table: Table, place: Place, axis: str, value: str) -> Drawing | None:
    """One line a method: the median over seeds at each look, the range too where bands can be told; None without runs.

    Args:
        table: From `llm_bench.report.tables.collect`.
        place: Of the cells.
        axis: ``step``, ``forwards`` or ``training_seconds``.
        value: ``dev_metric``, ``dev_loss`` or ``train_loss``.
    """
    from helene.lab.report.figures import Line

    found, colours = [], _colours(table)
    for cell, (what, _) in _trained_cells(table):
        if _place(cell) != place:
            continue
        stacked = _stacked(what.tests, axis, value)
        if stacked is None:
            continue
        x, rows = stacked
        low, middle, high = (tuple(f(rows, axis=0).tolist()) for f in (np.min, np.median, np.max))
        band = (low, high) if len(rows) > 1 else None
        found.append((cell.method, Line(label(cell.method, cell.tuning), x, middle, band, colour=colours[cell.method])))
    if not found:
        return None
    few = len(found) <= MOST_BANDS
    lines = [line if few or method in FIRST else replace(line, band=None) for method, line in found]
    names = {"step": "steps", "forwards": "forwards", "training_seconds": "seconds of training"}
    named = value.replace("metric", metric_of(place)).replace("_", " ")
    return _line_figure(tuple(lines), names[axis], named, _named(place))


@functools.lru_cache(maxsize=128)
def _line_figure(lines: tuple[Line, ...], xlabel: str, ylabel: str, title: str) -> Drawing:
    """A figure of that content, drawn once for all pages that show it."""
    from helene.lab.report.figures import line_figure

    return line_figure(lines, xlabel=xlabel, ylabel=ylabel, title=title)


def _place(cell: Cell) -> Place:
    return cell.kind, cell.task, cell.tuning


def metric_of(place: Place) -> str:
    """What the metric of a task is."""
    return "F1" if get_task(place[1], place[0]).metric == "token_f1" else "accuracy"


def _named(place: Place) -> str:
    kind, task, tuning = place
    return task_name(kind, task) + TUNING_LABELS[tuning]


def _trained_cells(table: Table) -> list[tuple[Cell, Any]]:
    """Cells that train, MeZO's and HELENE's first."""
    cells = [item for item in table.items() if item[0].method not in CONTROLS]
    return sorted(cells, key=lambda item: FIRST.index(item[0].method) if item[0].method in FIRST else len(FIRST))


def _colours(table: Table) -> dict[str, int]:
    """A place in the palette for each method that was tested, the same in every figure of the table."""
    from helene.lab.report.method_colours import places_of

    return places_of(cell.method for cell, (what, _) in _trained_cells(table) if what.tests)


def _stacked(records: Sequence[Record], axis: str, value: str) -> tuple[tuple[float, ...], Any] | None:
    found = [record.result["curve"] for record in records if _looks(record) > 1]
    if not found:
        return None
    places = min(len(curve["step"]) for curve in found)
    keep = [i for i in range(places) if all(curve[value][i] is not None for curve in found)]
    if len(keep) < 2:
        return None
    x = tuple(float(np.median([curve[axis][i] for curve in found])) for i in keep)
    return x, np.array([[curve[value][i] for i in keep] for curve in found])


def _looks(record: Record) -> int:
    """How many looks at dev a run had."""
    return len((record.result.get("curve") or {}).get("step", ()))


def profile(table: Table, cost: str = "forwards") -> tuple[Drawing, list[str]] | None:
    """Share of workloads (task and seed) that a method solves within a factor of the best method's cost.

    AlgoPerf's performance profile; a miss is never within any factor. The workloads are those of the method that has
    most.

    Returns:
        The figure, and the methods that are left out because they lack one of the workloads; None with fewer than two
        that lack none.
    """
    from helene.lab.report.figures import Line, line_figure

    costs = _costs(table, cost)
    workloads = max(costs.values(), key=len, default={}).keys()
    whole = {name: c for name, c in costs.items() if workloads <= c.keys()}
    best = {work: min(c[work] for c in whole.values()) for work in workloads}
    if len(whole) < 2 or all(math.isinf(value) for value in best.values()):
        return None
    factors = np.geomspace(1, 20, 60).tolist()
    colours = _colours_of_lines(table)
    lines = []
    for name, by_work in whole.items():
        ratios = [by_work[w] / best[w] if math.isfinite(best[w]) else math.inf for w in workloads]
        shares = [sum(r <= f * (1 + 1e-9) for r in ratios) / len(ratios) for f in factors]
        lines.append(Line(name, factors, shares, style="steps", colour=colours[name]))
    drawing = line_figure(
        lines, xlabel=f"{cost} to the target, over the best method's", ylabel="share of task and seed pairs", xlog=True
    )
    return drawing, [name for name in costs if name not in whole]


def _colours_of_lines(table: Table) -> dict[str, int]:
    """By label: the first tuning of a method has the method's colour, the others one of their own."""
    from helene.lab.report.method_colours import places_of

    lines: dict[str, str] = {}
    for cell in (cell for cell, (what, _) in _trained_cells(table) if what.tests):
        name = label(cell.method, cell.tuning)
        lines.setdefault(name, name if cell.method in lines.values() else cell.method)
    places = places_of([*_colours(table), *lines.values()])
    return {name: places[key] for name, key in lines.items()}


def _costs(table: Table, cost: str) -> dict[str, dict[Any, float]]:
    """By method, what each workload has cost it; one run stands for all seeds where these change nothing."""
    costs: dict[str, dict[Any, float]] = {}
    seeds: dict[tuple[str, str], set[Any]] = {}
    for cell, (what, _) in _trained_cells(table):
        for record in what.tests:
            if target := target_of(record):
                work = cell.kind, cell.task, record.config["data_seed"], record.config["seed"]
                costs.setdefault(label(cell.method, cell.tuning), {})[work] = target[cost] or 1
                seeds.setdefault(work[:2], set()).add(work)
    for cell, (what, _) in _trained_cells(table):
        of = costs.get(label(cell.method, cell.tuning), {})
        here = [of[work] for work in of if work[:2] == (cell.kind, cell.task)]
        if what.wanted == 1 and here:
            of.update(dict.fromkeys(seeds[cell.kind, cell.task], here[0]))
    return costs


def section(table: Table, title: str = "Curves", left_out: Sequence[str] = ()) -> pages.Section:
    """All figures of a table: dev metric over forwards, dev loss over steps, the profile; open for the first place.

    Args:
        table: From `llm_bench.report.tables.collect`, or `with_own_runs`.
        title: Of the section.
        left_out: Names of tasks that the page leaves out, from `with_own_runs`.
    """
    body: list[Any] = []
    each = {place: _drawn(table, place) for place in dict.fromkeys(map(_place, table))}
    places = {place: drawn for place, drawn in each.items() if drawn}
    for index, (place, drawn) in enumerate(places.items()):
        body += drawn if index == 0 else [pages.details(_named(place), drawn)]
    tasks = {place[:2] for place in places}
    found = profile(table) if len(tasks) > 1 else None  # of one task it says no more than the curves
    if found is not None:
        drawing, lacking = found
        caption = "Performance profile: the share of task and seed pairs solved within a factor."
        if lacking:
            caption += f" Left out, since runs of some task are not there: {'; '.join(lacking)}."
        body.append(pages.figure(drawing, caption))
    body = [*body, *_not_drawn(table)] if body else [pages.paragraph("No test run with two looks at dev is there yet.")]
    if left_out:
        said = "Tasks are left out where no method that this page is about has a test run"
        body.append(pages.paragraph(f"{said}: {', '.join(left_out)}."))
    return pages.Section(title, body, "figures")


_CAPTIONS = {
    "Dev {metric} over forwards: median over seeds as far as all of them went, with a band from the lowest to the "
    "highest. Of more than three lines only MeZO and HELENE have bands. Where lines coincide, the last of the legend "
    "hides the others.": ("forwards", "dev_metric"),
    "Dev loss over steps, drawn alike.": ("step", "dev_loss"),
}


def _drawn(table: Table, place: Place) -> list[Any]:
    """The figures of one place."""
    drawings = {caption: curves(table, place, *axes) for caption, axes in _CAPTIONS.items()}
    said = f"{_named(place)}. {{}}"
    return [
        pages.figure(drawing, said.format(caption.format(metric=metric_of(place))))
        for caption, drawing in drawings.items()
        if drawing
    ]


def _not_drawn(table: Table) -> list[Any]:
    """Which methods and runs have no curve, and where."""
    tasks = len({(cell.kind, cell.task) for cell in table})
    missing: dict[str, list[str]] = {}
    lost: list[str] = []
    for cell, (known, _) in _trained_cells(table):
        early = [record for record in known.tests if _looks(record) < 2]
        if len(early) == len(known.tests):
            missing.setdefault(label(cell.method, cell.tuning), []).append(task_name(cell.kind, cell.task))
        elif early:
            seeds = ", ".join(str(record.config["seed"]) for record in early)
            lost.append(f"{label(cell.method, cell.tuning)} on {task_name(cell.kind, cell.task)}, seed {seeds}")
    nowhere = sorted(name for name, where in missing.items() if len(where) == tasks)
    some = [f"{name} on {', '.join(where)}" for name, where in sorted(missing.items()) if len(where) < tasks]
    out = []
    if lost:
        out.append(pages.paragraph(f"Ended before a second look at dev, so not in the curves: {'; '.join(lost)}."))
    if some:
        out.append(
            pages.paragraph(f"Without a curve, since no test run there has two looks at dev: {'; '.join(some)}.")
        )
    if nowhere:
        where = "" if tasks == 1 else " on any task"
        out.append(
            pages.paragraph(f"Without a curve, since no test run{where} has two looks at dev: {'; '.join(nowhere)}.")
        )
    return out
