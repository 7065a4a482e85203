"""One page per figure: what it shows against what the paper says. Never imports torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from helene.lab.report.figures import Drawing
from helene.lab.report.index_page import write_index
from helene.lab.report.page_footer import measured_on
from helene.lab.report.pages import (
    Section,
    badge,
    figure,
    interval,
    number,
    paragraph,
    render_page,
    table,
    write_report_text,
)
from helene.lab.runs import canonical
from helene.lab.runs.records import Record
from synthetic.report.related import refresh


@dataclass(frozen=True)
class Statement:
    """One thing that the paper says about a figure, and whether ours shows it.

    Attributes:
        says: In our words.
        holds: None where the data do not tell.
        numbers: What it rests on.
    """

    says: str
    holds: bool | None
    numbers: str


MISSING = "its run failed"  # numbers of a statement that nothing can be said of


@dataclass(frozen=True)
class Remade:
    """A figure remade.

    Attributes:
        name: As on the command line.
        title: Of the page.
        quote: Where and what the paper says.
        parts: That, taken apart.
        answer: A few sentences.
        settings: Ours, since the paper gives none.
        drawings: (name, drawing, caption).
        tables: With their numbers.
        data: For the summary.
        broken: Why the instrument is broken; empty if it is not.
    """

    name: str
    title: str
    quote: str
    parts: Sequence[Statement]
    answer: str
    settings: Sequence[str]
    drawings: Sequence[tuple[str, Drawing, str]]
    tables: Sequence[Markup]
    data: Mapping[str, Any]
    broken: str = ""

    @property
    def verdict(self) -> str:
        """On what the paper says: consistent where every part holds, not_consistent where one does not."""
        return "broken_instrument" if self.broken else combined(self.parts)


def finished(records: Sequence[Record]) -> list[Record]:
    """Those that did not fail.

    Raises:
        ValueError: If every one failed.
    """
    found = [record for record in records if not record.failed]
    if not found:
        why = records[-1].result.get("message", "") if records else "there is none"
        raise ValueError(f"no run finished ({why}), so there is nothing to draw; run the figure again with --traceback")
    return found


def counted(steps: tuple[float, float, float]) -> str:
    """A median of steps with its interval; a median that misses the target is named."""
    if math.isinf(steps[0]):
        return "not reached" if math.isinf(steps[1]) else f"not reached in the median, {number(steps[1])} at best"
    return f"{number(steps[0])} {interval(*steps[1:])}"


def combined(parts: Sequence[Statement]) -> str:
    """The verdict on a statement from those on its parts."""
    if any(part.holds is False for part in parts):
        return "not_consistent"
    return "consistent" if parts and all(part.holds for part in parts) else "not_resolved"


def write_figure(
    out: Path, remade: Remade, records: Sequence[Record], command: str, provenance: Mapping[str, Any]
) -> tuple[str, bool]:
    """Write ``out/scaling/figures/NAME.html``, its summary and drawings; the answer, and whether all is sound.

    Raises:
        ValueError: If a file cannot be written.
    """
    folder = Path(out) / "scaling" / "figures"
    failed = [r for r in records if r.failed]
    for name, drawing, _ in remade.drawings:
        drawing.save(folder, f"{remade.name}-{name}")
    names = [name for name, _, _ in remade.drawings]
    words = {True: badge("consistent", "shown"), False: badge("not_consistent", "not shown"), None: badge("", "open")}
    claims = table(
        ["what the paper says", "here", "numbers"], [[p.says, words[p.holds], p.numbers] for p in remade.parts]
    )
    notes = [paragraph(f"{len(failed)} cells failed: {failed[0].result.get('message', '')}")] if failed else []
    notes += [paragraph(remade.broken)] if remade.broken else []
    page = render_page(
        title=remade.title,
        answer=remade.answer,
        lead=[
            paragraph(badge(remade.verdict) + Markup(" ") + remade.quote),
            *notes,
            *(figure(drawing, caption) for _, drawing, caption in remade.drawings),
        ],
        sections=[
            Section("What the paper says, part by part", [claims]),
            Section("Numbers", remade.tables),
            Section("Settings: ours, for the paper gives none", [paragraph(text) for text in remade.settings]),
        ],
        command=command,
        provenance=provenance,
        back="../../index.html",
        downloads=[("JSON", f"{remade.name}.json"), *((f"SVG: {name}", f"{remade.name}-{name}.svg") for name in names)],
        measured=measured_on(records),
    )
    write_report_text(folder / f"{remade.name}.html", page)
    summary = {
        "title": remade.title,
        "answer": remade.answer,
        "verdict": remade.verdict,
        "parts": [{"says": p.says, "holds": p.holds, "found": p.numbers} for p in remade.parts],
        "command": command,
        "keys": [r.key for r in records],
        **remade.data,
        "provenance": dict(provenance),
    }
    write_report_text(folder / f"{remade.name}.json", canonical.dumps(summary, indent=1) + "\n")
    refresh(Path(out) / "scaling")
    write_index(out)
    return remade.answer, not failed and not remade.broken
