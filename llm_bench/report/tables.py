"""A table as a page: the paper's number, the measured one, the interval, the cost; what was not run says so."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from helene.lab import canonical, pages
from helene.lab.provenance import provenance
from helene.lab.store import Record
from llm_bench.protocol.execute import Bench, CellRecords, cell_records
from llm_bench.protocol.paper_tables import CONTROL, PaperTable
from llm_bench.protocol.plan import Cell
from llm_bench.report.cell_numbers import Numbers, numbers
from llm_bench.report.sensitivity import sensitivity
from llm_bench.runs import methods
from llm_bench.tasks import get_task

UNTRAINED_LABELS = {
    "zero-shot": "Zero-shot",
    "icl": "ICL, 32 demonstrations",
    "linear-probe": "Linear probing",
    "bias-only": "Bias only (control: one offset a class)",
}
TUNING_LABELS = {"full": "", "lora": " (LoRA)", "prefix": " (prefix)"}
CONTROLS = ("bias-only", "linear-probe", "zero-shot", "icl")
NOT_RUN = "not run"


def label(method: str, tuning: str) -> str:
    """A row's name."""
    named = UNTRAINED_LABELS.get(method) or methods.get_method(method).label
    return named + TUNING_LABELS[tuning]


Table = Mapping[Cell, tuple[CellRecords, Numbers | None]]


def collect(bench: Bench, cells: Sequence[Cell], records: Sequence[Record]) -> Table:
    """What the records say of each cell."""
    found = {record.key: record for record in records}
    known = {cell: cell_records(bench, cell, found) for cell in cells if cell.kind in bench.models}
    return {cell: (what, numbers(what.tests)) for cell, what in known.items()}


def answer(table: Table) -> str:
    """The first line of the page: which methods beat the cheap controls, if any does."""
    columns = sorted({(cell.kind, cell.task) for cell in table})
    said: list[str] = []
    run: set[str] = set()
    for kind, task in columns:
        here = {c: n for c, (_, n) in table.items() if (c.kind, c.task) == (kind, task) and n is not None}
        trained = [(n.mean, label(c.method, c.tuning)) for c, n in here.items() if c.method not in CONTROLS]
        cheap = [(n.mean, label(c.method, c.tuning)) for c, n in here.items() if c.method in CONTROLS]
        least = "bias-only" if get_task(task, kind).classes else "zero-shot"  # no offset without common classes
        if not trained or not any(c.method == least for c in here):
            continue
        (best, name), (bar, control) = max(trained), max(cheap)
        run |= {c.method for c in here if c.method in CONTROLS}
        if best > bar:
            said.append(f"{task} ({kind}): {name} reaches {best:.1f}, the best control run here ({control}) {bar:.1f}")
        else:
            said.append(f"{task} ({kind}): no trained row beats the controls ({control} {bar:.1f}, {name} {best:.1f})")
    if not said:
        return "No column has a trained row and its least control (bias only, else zero-shot): nothing can be said."
    if all("no trained row" in text for text in said):
        return f"No row beats the controls that were run ({', '.join(sorted(run))}): {'; '.join(said)}."
    return f"{'; '.join(said)}."


def table_section(table: Table, paper: PaperTable, models: Mapping[Any, str]) -> pages.Section:
    """The paper's rows and columns, each cell both numbers."""
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
            row.append(_without_result(what, address) if found is None else _measured(found, address))
        if any(cell != NOT_RUN for cell in row[2::2]) or (method, tuning) not in (CONTROL, *controls):
            rows.append(row)
    headers = ["method"] + [h for kind, task in columns for h in (f"{task} ({kind}), paper", f"{task}, measured")]
    used = ", ".join(f"{kind}: {models[kind]}" for kind in sorted({kind for kind, _ in columns}))
    caption = (
        f"{paper.title}. Percent; test metric at the best dev step, mean and 95 % interval over seeds, which leaves "
        f"out the sampling of test rows. The paper's numbers are of {paper.model}, the measured ones of {used}: unless "
        "these are the same, read down a column, not across."
    )
    return pages.Section("The table", [pages.table(headers, rows, caption=caption)], "table")


def costs_section(table: Table) -> pages.Section:
    """What each cell took to its target."""
    rows, anchors = [], []
    for cell, (what, found) in table.items():
        if found is None or cell.method in CONTROLS:
            continue
        lr = what.choice.lr if what.choice else None
        edge = " (edge of the grid)" if what.choice and what.choice.edge else ""
        statuses = Markup(" ").join(pages.badge(status) for status in sorted(set(found.statuses)))
        rows.append(
            [
                label(cell.method, cell.tuning),
                f"{cell.task} ({cell.kind})",
                f"{pages.number(lr)}{edge}",
                found.target,
                found.steps,
                found.forwards,
                found.seconds,
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
        "To the target: the first look at dev that has it, median over seeds, a miss counted as ∞. A forward "
        "is one pass over one batch, a backward counts as two. Seconds are synchronized, evaluation left out. GiB is "
        "the highest the allocator held during steps (– on a CPU). Option loss and AUC are of the test set. "
        f"Runs were made on {_machines(table)}.{_not_captured(table)}"
    )
    return pages.Section("Cost", [pages.table(headers, rows, caption=caption, anchors=anchors)], "cost")


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
        rows.append([label(cell.method, cell.tuning), f"{cell.task} ({cell.kind})", found.width, found.lost, *losses])
    return rows


def sensitivity_section(table: Table) -> pages.Section:
    """`sensitivity_rows` as a section."""
    headers = ["method", "task", "working range of step sizes (factor)", "share of the grid that diverged"]
    headers += ["best dev loss", "before training", "untuned"]
    text = (
        "From the runs that chose the step sizes. The working range spans the step sizes at which dev loss falls by "
        "nine tenths of what it falls by at the best one. Untuned: dev loss at the method's natural step size."
    )
    return pages.Section(
        "Sensitivity", [pages.paragraph(text), pages.table(headers, sensitivity_rows(table))], "sensitivity"
    )


def facts_section(table: Table) -> pages.Section:
    """What the records say of data and models."""
    lines = set()
    for _, (what, _) in table.items():
        for record in what.tests:
            data, config = record.result.get("data", {}), record.config
            if not data:
                continue
            if cut := (record.result.get("method") or {}).get("share_cut"):
                lines.add(
                    f"{config['task']} ({config['kind']}), {label(config['method'], 'full')}: {100 * cut:.0f} % of the "
                    "prompts were longer than task or model allow, and lost their beginning"
                )
            if record.result.get("parameters"):
                count, mark = record.result["parameters"]["all"], config["fingerprint"]
                lines.add(f"{config['model']}: {count:,} parameters in {config['dtype']}, fingerprint {mark}")
            lines.add(
                f"{config['task']} ({config['kind']}): {data['source']} split, {data['train']} training, {data['dev']} "
                f"dev, {data['test']} test rows; {data['overlap_with_test']} of the former are test rows as well"
            )
    notes = [
        "The final character of a premise is dropped only where it is punctuation; LM-BFF's code drops it always.",
        "Models run without dropout, those trained with gradients too.",
        *sorted(lines),
    ]
    items = Markup("").join(Markup("<li>{}</li>").format(line) for line in notes)
    return pages.Section("Data and departures", [Markup("<ul>{}</ul>").format(items)], "data")


def write(out: Path, name: str, *, title: str, table: Table, sections: Sequence[pages.Section], command: str) -> Path:
    """Write ``out/llm/NAME.html`` with its JSON, the part's main page and summary, and the index; returns the page."""
    said = answer(table)
    lead = [pages.paragraph("Models are named as they are; none of them is the paper's unless it says so.")]
    text = pages.render_page(
        title=title, answer=said, sections=sections, command=command, provenance=provenance(command), lead=lead
    )
    pages.write_text(Path(out) / "llm" / "index.html", text)
    pages.write_summary(Path(out), "llm", title=title, answer=said, command=command, cells=_plain(table))
    return write_leaf(out, name, text, title=title, answer=said, command=command, cells=_plain(table))


def write_leaf(out: Path, name: str, text: str, **summary: Any) -> Path:
    """Write a page and its JSON, by which the index finds it; returns the page."""
    folder = Path(out) / "llm"
    pages.write_text(folder / f"{name}.json", canonical.dumps(summary, indent=1) + "\n")
    page = pages.write_text(folder / f"{name}.html", text)
    pages.write_index(Path(out))
    return page


def anchor(cell: Cell) -> str:
    """Address of a cell within its page."""
    return f"{cell.kind}-{cell.task}-{cell.method}-{cell.tuning}"


def _printed(mean: float, deviation: float | None) -> str:
    return f"{mean:.1f}" + (f" ± {deviation:.1f}" if deviation is not None else "")


def _measured(found: Numbers, address: str) -> Markup:
    text = f"{found.mean:.1f}"
    if found.low is not None and found.high is not None:
        text += f" {pages.interval(found.low, found.high)}"
    return _link(text, address)


def _without_result(what: CellRecords | None, address: str) -> Markup | str:
    if what is None or not (what.tried or what.tests):
        return NOT_RUN
    if what.tests:
        ended = {str(record.result["status"]).replace("_", " ") for record in what.tests}
        return _link(", ".join(sorted(ended)), address)
    return _link("not tested yet" if what.left else "no step size ended well", address)


def _link(text: str, address: str) -> Markup:
    return Markup('<a href="#{}">{}</a>').format(address, text)


def _plain(table: Table) -> list[dict[str, Any]]:
    rows = []
    for cell, (what, found) in table.items():
        row: dict[str, Any] = {"kind": cell.kind, "task": cell.task, "method": cell.method, "tuning": cell.tuning}
        row |= {"lr": what.choice.lr if what.choice else None, "runs_left": what.left}
        if found is not None:
            row |= {
                "mean": found.mean,
                "interval": [found.low, found.high],
                "values": list(found.values),
                "steps_to_target": found.steps,
                "forwards_to_target": found.forwards,
                "seconds_to_target": found.seconds,
                "finite": found.steps is not None and math.isfinite(found.steps),
            }
        rows.append(row)
    return rows
