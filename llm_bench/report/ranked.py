"""One ranked table a task: measured rows only, the best first, each with its interval, seeds and cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from helene.lab.report import pages
from llm_bench.protocol.execute import CellRecords
from llm_bench.protocol.plan import Cell
from llm_bench.report.cell_numbers import Numbers
from llm_bench.report.compare import CONTROLS, duels, task_name
from llm_bench.report.labels import anchor, label

Table = Mapping[Cell, tuple[CellRecords, Numbers | None]]
HEADERS = ("method", "test, %", "95 % interval", "seeds", "steps to target", "seconds to it", "seconds in all", "GiB")
NUMERIC = (1, 4, 5, 6, 7)  # of these columns
ROWS = "ʳ marks an interval of the test rows' sampling: there is one run, or seeds change nothing."
CAPTION = (
    "Test metric at the best dev step, mean over seeds, best first. Steps and seconds: medians over seeds, evaluation "
    "left out; those of one table may be of several hosts. No seconds where runs shared a card, none to a target that "
    "most runs miss. GiB: what steps held on the card, of a cell's runs the least, since test runs hold the best "
    f"weights too, and long processes what earlier runs had left. {ROWS}"
)


def measured(table: Table) -> dict[Cell, Numbers]:
    """The cells with a test metric."""
    return {cell: found for cell, (_, found) in table.items() if found is not None}


def ranked_sections(table: Table) -> list[pages.Section]:
    """A section per task: who leads, and the table."""
    out: list[pages.Section] = []
    found = {(duel.kind, duel.task): duel.sentence for duel in duels(measured(table))}
    for kind, task in dict.fromkeys((c.kind, c.task) for c in measured(table)):
        here = {c: value for c, value in table.items() if (c.kind, c.task) == (kind, task)}
        name = task_name(kind, task)
        sentence = found.get((kind, task), "") if len(found) > 1 else ""  # one alone is the page's answer
        said = [pages.paragraph(sentence)] if sentence else []
        body: list[Markup | str] = [
            *said,
            pages.table(HEADERS, ranked_rows(here), caption=_caption(here, bool(out)), numeric=NUMERIC),
        ]
        title, address = f"{name}: {model_of(here)}", f"ranked-{kind}-{task}"
        out.append(pages.Section(title, [*body, *_unmeasured(here)], address, name))
    return out


def ranked_rows(table: Table) -> list[list[Any]]:
    """Rows of one task, the best first."""
    found = sorted(measured(table).items(), key=lambda item: -item[1].mean)
    return [_row(cell, table[cell][0], numbers) for cell, numbers in found]


def _caption(table: Table, follows: bool) -> str:
    """What must be known of a task's table; what holds of all stands above the first."""
    found = measured(table)
    here = target_note(n.target for n in found.values()) + few_seeds_note(map(_seeds, found.values()))
    return f"{'' if follows else CAPTION}{here}".strip()


def _seeds(found: Numbers) -> int:
    return 0 if found.over_rows else len(found.values)


def target_note(targets: Iterable[float | None]) -> str:
    """What steps are counted to, to follow other text; empty without a target."""
    known = sorted({value for value in targets if value is not None})
    return f" Target: {' or '.join(f'{value:g}' for value in known)} on dev." if known else ""


def few_seeds_note(counts: Iterable[int]) -> str:
    """What intervals over two seeds are worth, to follow other text; empty where there is none."""
    said = " Two seeds tell next to nothing of the spread: their interval is 12.7 standard errors to either side."
    return said if 2 in counts else ""


def _row(cell: Cell, what: CellRecords, found: Numbers) -> list[Any]:
    name = Markup('<a href="#{}">{}</a>').format(anchor(cell), label(cell.method, cell.tuning))
    mean = f"{found.mean:.1f}"
    if cell.method in CONTROLS:
        return [name, mean, interval_of(found), seeds_of(what, found), None, None, None, None]
    return [
        name,
        mean,
        interval_of(found),
        seeds_of(what, found),
        *to_target(found.steps, found.seconds),
        seconds_of(found.training_seconds),
        gib_of(found.bytes),
    ]


def interval_of(found: Numbers) -> str | None:
    """The shown interval; marked where it is over test rows."""
    ends = found.shown_interval
    return None if ends is None else pages.interval(*ends) + ("ʳ" if found.over_rows else "")


def to_target(steps: float | None, seconds: float | None) -> tuple[str | None, str | None]:
    """Steps and seconds for people, medians over seeds; one mark where most missed it, or where there is none."""
    if steps is None:
        return "no target", None
    return ("not reached", None) if math.isinf(steps) else (pages.number(round(steps)), seconds_of(seconds))


def seconds_of(value: float | None) -> str | None:
    """Seconds for people."""
    return None if value is None else pages.number(value)


def gib_of(size: float | None) -> str | None:
    """Bytes for people."""
    return None if size is None else f"{size / 2**30:.2f}"


def seeds_of(what: CellRecords, found: Numbers) -> Markup | str:
    """How many seeds there are; what is half finished or failed is marked."""
    there, lost = len(found.values), len(what.tests) - len(found.values)
    marks = []
    if lost or what.failed:
        marks.append(pages.badge("failed", f"{lost + len(what.failed)} of {what.wanted} failed"))
    if what.left > len(what.failed):
        marks.append(pages.badge("incomplete", f"{there} of {what.wanted}: half finished"))
    return Markup(" ").join(marks) if marks else str(there)


def model_of(table: Table) -> str:
    """The models of the test runs with their sizes."""
    sizes: dict[str, int | None] = {}
    for record in (record for what, _ in table.values() for record in what.tests):
        name = model_name(record.config)
        sizes[name] = sizes.get(name) or (record.result.get("parameters") or {}).get("all")
    return "; ".join(f"{name}, {parameters(size)}" if size else name for name, size in sizes.items())


def parameters(number: int) -> str:
    """A number of parameters in words."""
    return f"{number / 1e6:.0f} million parameters" if number >= 1e6 else f"{pages.number(number)} parameters"


_BY_FINGERPRINT = {  # committed rows call them by the short names of their command lines
    "cf470565": "Gemma 3 270M",
    "ce4cee95": "SmolLM2-135M-Instruct",
}


def model_name(config: Mapping[str, Any]) -> str:
    """The model's own name where its weights are known, else what the run called it."""
    return _BY_FINGERPRINT.get(str(config.get("fingerprint"))[:8], config["model"])


def _unmeasured(table: Table) -> Sequence[Markup]:
    """Cells with runs but without a number, and why."""
    lines = [
        Markup("<li>{}: {}</li>").format(label(cell.method, cell.tuning), why_not(what))
        for cell, (what, found) in table.items()
        if found is None and (what.tried or what.tests or what.failed)
    ]
    return (
        [pages.paragraph("Without a number yet:"), Markup("<ul>{}</ul>").format(Markup("").join(lines))]
        if lines
        else []
    )


def why_not(what: CellRecords) -> str:
    """Why a cell has no number."""
    if what.failed:
        last = what.failed[-1].result
        return f"{len(what.failed)} runs failed: {last.get('message') or last.get('status')}"
    if what.tests:
        ended = {str(record.result["status"]).replace("_", " ") for record in what.tests}
        return f"every seed ended without a test metric ({', '.join(sorted(ended))})"
    return "not tested yet" if what.left else "no step size ended well"


def shared_data(table: Table) -> str:
    """What the seeds of a page's trained rows share; empty where they share nothing."""
    shared = []
    for kind in dict.fromkeys(cell.kind for cell in table):
        runs = [
            r.config
            for c, (what, _) in table.items()
            if c.kind == kind and c.method not in CONTROLS
            for r in what.tests
        ]
        by_task = {c["task"] for c in runs}
        once = all(len({c["data_seed"] for c in runs if c["task"] == task}) == 1 for task in by_task)
        if runs and once and len({c["seed"] for c in runs}) > 1:
            shared.append(kind)
    if not shared:
        return ""
    return (
        f"Seeds of {' and '.join(shared)} runs change the directions z only: training rows, dev rows and their order "
        "are the same. So intervals leave out the choice of the data."
    )
