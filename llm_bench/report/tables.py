"""A table as a page: the paper's number, the measured one, the interval, the cost; what was not run says so."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from helene.lab.report import pages
from helene.lab.runs.store import Record
from llm_bench.protocol.execute import Bench, CellRecords, cell_records
from llm_bench.protocol.paper_tables import CONTROL, PaperTable
from llm_bench.protocol.plan import Cell
from llm_bench.report.cell_numbers import Numbers, numbers
from llm_bench.report.compare import CONTROLS, against_controls, decidable, duels, headline, task_name
from llm_bench.report.labels import STATUS_LABELS, anchor, label, step_size
from llm_bench.report.ranked import Table, interval_of, measured, seeds_of, to_target, why_not
from llm_bench.report.sensitivity import sensitivity
from llm_bench.runs.config import RunConfig
from llm_bench.runs.untrained import unsupported

NOT_RUN = "not run"


def collect(bench: Bench, cells: Sequence[Cell], records: Sequence[Record]) -> Table:
    """What the records say of each cell."""
    found = {record.key: record for record in records}
    known = {cell: cell_records(bench, cell, found) for cell in cells if cell.kind in bench.models}
    return {cell: (what, numbers(what.tests, what.tuning)) for cell, what in known.items()}


def answer(table: Table) -> str:
    """The first lines of the page: HELENE against MeZO with numbers, and which of them beats the controls."""
    found = decidable(duels(measured(table)))
    decided = [duel.sentence for duel in found if duel.winner] if len(found) > 1 else []
    return " ".join(filter(None, [headline(found), *decided, against_controls(found)]))


def table_section(bench: Bench, table: Table, paper: PaperTable) -> pages.Section:
    """The paper's rows and columns, each cell both numbers, folded away."""
    columns = [c for c in paper.columns if any((cell.kind, cell.task) == c for cell in table)]
    cells = {(cell.method, cell.tuning, cell.kind, cell.task): value for cell, value in table.items()}
    rows = []
    controls = [(m, "full") for m in CONTROLS if (m, "full") not in paper.rows]
    for method, tuning in [*paper.rows, *controls]:
        row: list[Any] = [label(method, tuning)]
        for kind, task in columns:
            printed = paper.printed.get(((method, tuning), (kind, task)))
            row.append("–" if printed is None else _printed(*printed))
            what, found = cells.get((method, tuning, kind, task), (None, None))
            address = anchor(Cell(kind, task, method, tuning))
            cannot = _cannot(bench, Cell(kind, task, method, tuning))
            row.append(_without_result(what, address, cannot) if found is None else _measured(what, found, address))
        if any(cell != NOT_RUN for cell in row[2::2]) or (method, tuning) not in (CONTROL, *controls):
            rows.append(row)
    headers = ["method"] + [h for kind, task in columns for h in (f"{task_name(kind, task)}, paper", "measured")]
    used = ", ".join(f"{kind}: {bench.models[kind]}" for kind in sorted({kind for kind, _ in columns}))
    caption = (
        f"{paper.title}. Percent; test metric at the best dev step, mean and 95 % interval over seeds, which leaves "
        f"out the sampling of test rows. The paper's numbers are of {paper.model}, the measured ones of {used}: "
        "where these differ, compare the methods of one column, not the two columns. Not run: no run of the cell is "
        "there. Not tested yet: step sizes were tried, and the test runs are to come."
    )
    fold = pages.details(
        "Every row of the paper's table, its numbers beside ours", [pages.table(headers, rows, caption=caption)]
    )
    return pages.Section("The paper's table", [fold], "table")


def costs_section(table: Table) -> pages.Section:
    """What each cell took to its target."""
    rows, anchors = [], []
    for cell, (what, found) in table.items():
        if found is None or cell.method in CONTROLS:
            continue
        lr = what.choice.lr if what.choice else None
        edge = " (edge of the grid)" if what.choice and what.choice.edge else ""
        statuses = Markup(" ").join(ended(status) for status in sorted(set(found.statuses)))
        rows.append(
            [
                label(cell.method, cell.tuning),
                task_name(cell.kind, cell.task),
                f"{step_size(lr) or '–'}{edge}",
                found.target,
                *(_count(value) for value in (found.steps, found.forwards)),
                to_target(found.steps, found.seconds)[1],
                found.training_seconds,
                found.speed,
                None if found.bytes is None else found.bytes / 2**30,
                found.option_loss,
                found.auc,
                statuses,
            ]
        )
        anchors.append(f"cost-{anchor(cell)}")
    headers = [
        "method",
        "task",
        "step size",
        "target (dev)",
        "steps",
        "forwards",
        "seconds",
        "seconds in all",
        "tokens a second",
        "GiB",
        "option loss",
        "AUC",
        "runs ended",
    ]
    caption = (
        "To the target: the first look at dev that has it, median over seeds; not reached where most "
        "runs miss it. No seconds there, and where all runs shared a card. A forward is one pass over one batch, a "
        "backward counts as two. Seconds are synchronized, without evaluation. "
        "GiB is what the allocator held in steps (– on a CPU), of a cell's runs the least, since test runs hold the "
        "best weights too, and long processes what earlier runs had left. Option loss and AUC are of the test set. "
        f"Seconds are those of {_machines(table)}.{_not_captured(table)}"
    )
    body = pages.table(headers, rows, caption=caption, anchors=anchors, numeric=range(3, 12))
    return pages.Section("Cost", [pages.details("Steps, forwards, seconds and bytes of each row", [body])], "cost")


def _count(value: float | None) -> str | None:
    return None if value is None else "not reached" if math.isinf(value) else pages.number(value)


def ended(status: str) -> Markup:
    """How a run ended: one that made all its steps without the target is no failure."""
    return pages.badge(status, STATUS_LABELS.get(status, ""))


def _not_captured(table: Table) -> str:
    """Which rows' seconds are those of steps without the engine, where others have it."""
    trained = {c: what.tests for c, (what, _) in table.items() if what.tests and c.method not in CONTROLS}
    plain = [label(c.method, c.tuning) for c, tests in trained.items() if not any(r.config["engine"] for r in tests)]
    if not plain or len(plain) == len(trained):
        return ""
    return f" Steps without the engine: {', '.join(dict.fromkeys(plain))}."


def _machines(table: Table) -> str:
    """The GPUs or else processors of the test runs."""
    facts = [record.provenance for what, _ in table.values() for record in what.tests]
    names = {name for fact in facts for name in fact.get("gpu") or [fact.get("cpu") or "an unknown processor"]}
    return ", ".join(sorted(names)) or "no machine yet"


def sensitivity_rows(table: Table) -> list[list[Any]]:
    """How forgiving each method's step size is, from the tuning runs: rows for a page."""
    rows = []
    for cell, (what, _) in table.items():
        found = sensitivity(what.tuning)
        if what.choice is None or found is None:
            continue
        untuned = None if found.untuned is None else found.untuned[1]
        losses = [found.loss, found.start, untuned]
        rows.append(
            [label(cell.method, cell.tuning), task_name(cell.kind, cell.task), found.width, found.lost, *losses]
        )
    return rows


def sensitivity_section(table: Table) -> pages.Section:
    """`sensitivity_rows` as a section."""
    headers = ["method", "task", "working range of step sizes (factor)", "share of the grid that diverged"]
    headers += ["best dev loss", "before training", "untuned"]
    text = (
        "From the runs that chose the step sizes. The working range spans the step sizes at which dev loss falls by "
        "nine tenths of what it falls by at the best one. Dev loss is that of the look with the best dev metric, by "
        "which weights are chosen, so it may be above the loss before training. Untuned: dev loss at the method's "
        "natural step size."
    )
    return pages.Section(
        "Sensitivity", [pages.paragraph(text), pages.table(headers, sensitivity_rows(table))], "sensitivity"
    )


def _in_no_row(table: Table, records: Sequence[Record]) -> list[str]:
    """How many test runs of each method and task of the table are in none of its numbers."""
    used = {record.key for what, _ in table.values() for record in what.tests}
    left: dict[str, int] = {}
    for record in records:
        cell = Cell(*(record.config[name] for name in ("kind", "task", "method", "tuning")))
        if cell in table and record.config["role"] == "test" and not record.failed and record.key not in used:
            name = f"{label(cell.method, cell.tuning)} on {task_name(cell.kind, cell.task)}"
            left[name] = left.get(name, 0) + 1
    if not left:
        return []
    counts = ", ".join(f"{name} {count}" for name, count in sorted(left.items()))
    return [
        "Test runs of the store that are in no row: the tuning runs that are there did not choose their step size, "
        f"their seed changes nothing, or a setting is not the preset's: {counts}."
    ]


def facts_section(table: Table, records: Sequence[Record] = ()) -> pages.Section:
    """What the records say of data and models; of those of the store that are in no row too."""
    lines, overlaps = set(), dict[str, set[int]]()
    for _, (what, _) in table.items():
        for record in what.tests:
            data, config = record.result.get("data", {}), record.config
            if not data:
                continue
            task = task_name(config["kind"], config["task"])
            if cut := (record.result.get("method") or {}).get("share_cut"):
                lines.add(
                    f"{task}, {label(config['method'], 'full')}: {100 * cut:.0f} % of the "
                    "prompts were longer than task or model allow, and lost their beginning"
                )
            if record.result.get("parameters"):
                count, mark = record.result["parameters"]["all"], config["fingerprint"]
                lines.add(
                    f"{config['model']}: {pages.number(count)} parameters in {config['dtype']}, fingerprint {mark}"
                )
            sizes = f"{data['train']} training, {data['dev']} dev and {data['test']} test rows"
            split = f"{task}: {data['source']} split with {sizes}"
            overlaps.setdefault(split, set()).add(data["overlap_with_test"])
    notes = [
        "The final character of a premise is dropped only where it is punctuation; LM-BFF's code drops it always.",
        "Models run without dropout, those trained with gradients too.",
        *_in_no_row(table, records),
        *(f"{line}." for line in sorted(lines)),
        *(f"{split}. {_overlap(counts)}" for split, counts in sorted(overlaps.items())),
    ]
    items = Markup("").join(Markup("<li>{}</li>").format(line) for line in notes)
    return pages.Section("Data and departures", [Markup("<ul>{}</ul>").format(items)], "data")


def _overlap(counts: set[int]) -> str:
    """How many training and dev rows are test rows, over the seeds of the data."""
    low, high = min(counts), max(counts)
    if not high:
        return "No training or dev row is a test row."
    return f"{low if low == high else f'{low} to {high}'} of the training and dev rows are test rows as well."


def _printed(mean: float, deviation: float | None) -> str:
    return f"{mean:.1f}" + (f" ± {deviation:.1f}" if deviation is not None else "")


def _measured(what: CellRecords | None, found: Numbers, address: str) -> Markup:
    ends = interval_of(found)
    text = _link(f"{found.mean:.1f}" + (f" {ends}" if ends else ""), address)
    seeds = seeds_of(what, found) if what is not None else ""
    return Markup("{} {}").format(text, seeds) if isinstance(seeds, Markup) else text


def _cannot(bench: Bench, cell: Cell) -> str | None:
    """Why a row cannot be had for a task."""
    if cell.method not in CONTROLS or cell.kind not in bench.models:
        return None
    return unsupported(RunConfig(bench.models[cell.kind], cell.kind, cell.task, cell.method))


def _without_result(what: CellRecords | None, address: str, cannot: str | None) -> Markup | str:
    if cannot is not None:
        return f"cannot be run: {cannot}"
    if what is None or not (what.tried or what.tests or what.failed):
        return NOT_RUN
    return _link(why_not(what), address)


def _link(text: str, address: str) -> Markup:
    return Markup('<a href="#{}">{}</a>').format(address, text)
