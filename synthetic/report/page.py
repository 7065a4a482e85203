"""The page of the report, section by section. Never imports torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from helene.lab.pages import Section, figure, paragraph, render_page
from helene.lab.records import Record
from synthetic.analysis.least_steps import BOUND
from synthetic.analysis.verdicts import Analysed
from synthetic.design import Design
from synthetic.report.answers import Conclusion
from synthetic.report.cells import run_sections
from synthetic.report.families import family_sections
from synthetic.report.guards import guard_sections
from synthetic.report.overview import overview_sections
from synthetic.report.pictures import Pictures
from synthetic.report.related import related_section

TITLE = "How steps scale with dimension"
_MANY, _MAIN = 8, ("quadratic", "log_cosh")


def page_of(
    folder: Path,
    design: Design,
    analysed: Sequence[Analysed],
    concluded: Sequence[Conclusion],
    pictures: Pictures,
    *,
    answer: str,
    failed: Sequence[Record],
    command: str,
    provenance: Mapping[str, Any],
) -> str:
    """The whole page, for ``folder/index.html``."""
    return render_page(
        title=TITLE,
        answer=answer,
        lead=_lead(concluded, failed, pictures),
        sections=_sections(folder, design, analysed, concluded, pictures),
        command=command,
        provenance=provenance,
    )


def _lead(concluded: Sequence[Conclusion], failed: Sequence[Record], pictures: Pictures) -> list[Markup | str]:
    lines = [
        Markup('{} <a href="#conclusion-{}">Cells</a>').format(c.says, index + 1)
        for index, c in enumerate(concluded)
        if index
    ]
    if failed:
        lines.append(
            Markup("{}").format(f"{len(failed)} cells failed and are left out: {failed[0].result.get('message', '')}")
        )
    body: list[Markup | str] = [
        Markup("<ul>{}</ul>").format(Markup("").join(Markup("<li>{}</li>").format(x) for x in lines))
    ]
    first = next(iter(pictures.values()), [])
    return [figure(drawing, caption) for _, drawing, caption in first[:1]] + body


def _sections(
    folder: Path,
    design: Design,
    analysed: Sequence[Analysed],
    concluded: Sequence[Conclusion],
    pictures: Pictures,
) -> list[Section]:
    shown = _inline(pictures)
    if shown:
        first = next(iter(shown))
        shown[first] = shown[first][1:]  # it stands at the top of the page
    reading = paragraph(
        "The paper claims that layer-wise thresholds make the number of steps follow max_i d_i, the largest layer, "
        "instead of d, the number of all parameters. With n layers of width w both grow, so both are varied: alpha "
        "is the exponent of max_i d_i, beta that of d. “Follows max_i d_i” is alpha near 1 and beta near 0, "
        "“follows d” the reverse; the controls show what that is on a finite grid. An experiment supports a rate; "
        "it does not prove one. " + BOUND
    )
    return [
        Section("What is asked", [reading]),
        *overview_sections(analysed, concluded),
        related_section(folder),
        *family_sections(analysed, shown),
        *guard_sections(analysed),
        *run_sections(design, analysed),
    ]


def _inline(pictures: Pictures) -> Pictures:
    """Those that stand in the page, so that it stays below 3 MB: with many families one a family and start."""
    if len(pictures) <= _MANY:
        return {key: list(drawings) for key, drawings in pictures.items()}
    return {key: drawings[: None if key[0] in _MAIN else 1] for key, drawings in pictures.items()}
