"""The part's main page, from the pages' JSON: the same whichever page was drawn last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from helene.lab.report import index_page, pages
from helene.lab.report.report_files import read_leaves
from helene.lab.runs import canonical
from llm_bench.protocol.plan import Cell
from llm_bench.protocol.presets import SECOND_MODEL
from llm_bench.report.cell_numbers import Numbers
from llm_bench.report.compare import (
    CONTROLS,
    TASKS,
    Duel,
    against_controls,
    decidable,
    duels,
    headline,
    task_name,
)
from llm_bench.report.ranked import (
    HEADERS,
    NUMERIC,
    ROWS,
    gib_of,
    interval_of,
    parameters,
    seconds_of,
    target_note,
    to_target,
)

TITLE, COMMAND = "Fine-tuning language models", "helene llm pages"
_FIRST = ("causal", "sst2")  # the task of the index page's table
Row = Mapping[str, Any]
_DUELS = ("task", "model", "HELENE", "MeZO", "HELENE's lead", "best control", "untrained")


def write(out: Path) -> None:
    """Write ``out/llm/index.html`` and its summary from the tables' JSON, then the index of all reports.

    Raises:
        ValueError: If a file cannot be written.
    """
    folder = Path(out) / "llm"
    rows = task_rows(folder)
    found = duels({_cell(row): _numbers(row) for row in rows})
    said = " ".join(filter(None, (headline(found), against_controls(found))))
    front = [row for row in rows if (row["kind"], row["task"]) == _FIRST] or rows[:0]
    sections = [pages.Section("HELENE against MeZO, task by task", [_duels_table(rows, found)])] if found else []
    for kind, task in dict.fromkeys((row["kind"], row["task"]) for row in front):
        title = f"{task_name(kind, task)}: {_model(front)}"
        sections.append(
            pages.Section(
                title,
                [pages.table(HEADERS, ranked(front), caption=_caption(front), numeric=NUMERIC)],
                short=task_name(kind, task),
            )
        )
    leaves = [
        Markup('<li><a href="{}">{}</a>: {}</li>').format(leaf.link, leaf.title, _first_sentence(leaf.answer))
        for leaf in read_leaves(folder)
    ]
    sections.append(pages.Section("Pages", [Markup("<ul>{}</ul>").format(Markup("").join(leaves))]))
    page = pages.render_page(
        title=TITLE,
        answer=said,
        lead=[pages.paragraph(note) for note in seed_notes(folder)],
        sections=sections,
        command=COMMAND,
        downloads=[("JSON", "summary.json")],
    )
    pages.write_report_text(folder / "index.html", page)
    more = {"front": _front(front, found)} if found else {}
    pages.write_summary(Path(out), "llm", title=TITLE, answer=said, command=COMMAND, cells=rows, **more)
    index_page.write_index(Path(out))


def seed_notes(folder: Path) -> list[str]:
    """What the seeds of the tables' runs share, each once."""
    notes = dict.fromkeys(str(summary.get("seeds") or "") for summary in _tables(folder))
    return [note for note in notes if note]


def _tables(folder: Path) -> list[dict[str, Any]]:
    found = []
    for path in sorted(folder.glob("table-*.json")):
        if path.name.endswith("-smoke.json"):
            continue
        try:
            summary = dict(canonical.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            continue
        found.append({**summary, "is_first_model": not path.stem.endswith(f"-{SECOND_MODEL}")})
    return found


def task_rows(folder: Path) -> list[Row]:
    """The measured rows of each task, from the page whose runs of it are longest; of equal ones, with most of them.

    A page of a second model counts where no other has the task.
    """
    best: dict[tuple[str, str], tuple[tuple[bool, int, int, int], list[Row]]] = {}
    for summary in _tables(folder):
        cells = summary.get("cells", [])
        tasks: dict[tuple[str, str], list[Row]] = {}
        for row in cells:
            if row.get("values"):
                tasks.setdefault((row["kind"], row["task"]), []).append(row)
        for task, rows in tasks.items():
            trained = [row for row in rows if row["method"] not in CONTROLS]
            steps = max((row.get("steps") or 0 for row in trained), default=0)
            rank = summary["is_first_model"], steps, sum(len(row["values"]) for row in trained), len(rows)
            if task not in best or rank > best[task][0]:
                best[task] = rank, rows
    order = {task: i for i, task in enumerate(TASKS)}
    tasks_found = sorted(best, key=lambda t: (t[0], order.get(t[1], len(order))))
    return [row for task in tasks_found for row in best[task][1]]


def _first_sentence(text: str) -> str:
    return text.partition(". ")[0].rstrip(".") + "."


def _cell(row: Row) -> Cell:
    return Cell(row["kind"], row["task"], row["method"], row["tuning"])


def _numbers(row: Row) -> Numbers:
    low, high = row["interval"]
    return Numbers(tuple(row["values"]), row["mean"], low, high, test_rows=row["test_rows"])


def _model(rows: Sequence[Row]) -> str:
    names = dict.fromkeys(f"{row['model']}, {parameters(row['parameters'])}" for row in rows if row.get("parameters"))
    return "; ".join(names)


def _caption(rows: Sequence[Row]) -> str:
    target = target_note(row.get("target") for row in rows)
    return f"Seconds and GiB are those of training; no seconds where runs shared a card.{target} {ROWS}"


def ranked(rows: Sequence[Row]) -> list[list[Any]]:
    """Rows of one task, the best first."""
    out = []
    for row in sorted(rows, key=lambda row: -row["mean"]):
        mean, wanted = f"{row['mean']:.1f}", row["wanted"]
        seeds = f"{len(row['values'])}" + (f" of {wanted}" if len(row["values"]) < wanted else "")
        head = [row["label"], mean, interval_of(_numbers(row)), seeds]
        if row["method"] in CONTROLS:
            out.append([*head, None, None, None, None])
            continue
        reached = to_target(row["steps_to_target"], row["seconds_to_target"])
        out.append([*head, *reached, seconds_of(row["training_seconds"]), gib_of(row["step_bytes"])])
    return out


def _duels_table(rows: Sequence[Row], found: Sequence[Duel]) -> Markup:
    lines = []
    for duel in found:
        here = [row for row in rows if (row["kind"], row["task"]) == (duel.kind, duel.task)]
        zero = next((row["mean"] for row in here if row["method"] == "zero-shot"), None)
        name = next((row["label"] for row in here if duel.control and row["method"] == duel.control[0]), "")
        control = f"{duel.control[1].mean:.1f}, {name.partition(' (')[0]}" if duel.control else None
        ends = pages.interval(duel.ahead.low, duel.ahead.high)
        ahead = f"{duel.ahead.points:+.1f} {ends}".replace("-", "−") if duel.is_decidable else "one seed"
        both = []
        for who, row in (("HELENE", duel.helene), ("MeZO", duel.mezo)):
            text = f"{row.mean:.1f}" + (f" {interval_of(row)}" if row.shown_interval else "")
            both.append(Markup("<strong>{}</strong>").format(text) if duel.winner == who else text)
        task = task_name(duel.kind, duel.task)
        lines.append([task, _model(here), *both, ahead, control, None if zero is None else f"{zero:.1f}"])
    caption = (
        "Percent of test rows (SQuAD: F1), 95 % intervals. Bold: leads beyond noise, that is, the interval of the "
        "lead leaves out 0. The lead's interval counts seeds and the sampling of test rows."
    )
    return pages.table(_DUELS, lines, caption=caption)


def _front(rows: Sequence[Row], found: Sequence[Duel]) -> dict[str, Any]:
    """What the index page shows of this part."""
    counted = decidable(found)
    wins = sum(duel.winner == "HELENE" for duel in counted)
    first = next((duel for duel in found if (duel.kind, duel.task) == _FIRST), found[0])
    name = TASKS.get(first.task, first.task)
    beats = f"HELENE beats MeZO on {wins or 'none'} of {len(counted)} tasks; on {name} it"
    if not counted[0].is_decidable:
        beats = f"One seed of a method decides nothing; on {name} HELENE"
    head = f"{beats} reaches {first.helene.mean:.1f} %, MeZO {first.mezo.mean:.1f} %"
    said = f"{headline(found)} {against_controls(found)}".strip()
    front: dict[str, Any] = {"headline": head, "says": said}
    if rows:
        caption = f"{name}, {_model(rows)}: test accuracy, best first. {_caption(rows)}"
        front["table"] = {"headers": HEADERS, "rows": ranked(rows), "caption": caption, "numeric": NUMERIC}
    return front
