"""The two pages of the report: the answer, then what it rests on. Never imports torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from helene.lab.report.page_footer import measured_on
from helene.lab.report.pages import Section, figure, paragraph, render_page
from helene.lab.runs.records import Record
from synthetic.analysis.least_steps import BOUND
from synthetic.analysis.verdicts import Analysed
from synthetic.design import Design
from synthetic.report.answers import Conclusion, control_sentence
from synthetic.report.cells import run_sections
from synthetic.report.families import family_sections
from synthetic.report.guards import guard_sections
from synthetic.report.overview import evidence_sections, glance
from synthetic.report.pictures import Pictures
from synthetic.report.related import related_section

TITLE = "How steps scale with dimension"
DOWNLOADS = (("CSV", "exponents.csv"), ("Parquet", "runs.parquet"), ("JSON", "summary.json"), ("JSONL", "series.jsonl"))
_MANY, _MAIN = 8, ("quadratic", "log_cosh")


def pages_of(
    folder: Path,
    design: Design,
    analysed: Sequence[Analysed],
    concluded: Sequence[Conclusion],
    pictures: Pictures,
    *,
    answer: str,
    records: Sequence[Record],
    command: str,
    provenance: Mapping[str, Any],
) -> tuple[str, str]:
    """The pages for ``folder/index.html`` and ``folder/evidence.html``."""
    downloads = [(name, file) for name, file in DOWNLOADS if (folder / file).is_file()]
    foot: dict[str, Any] = {"command": command, "provenance": provenance, "downloads": downloads}
    foot["measured"] = measured_on(records)
    first = next(iter(pictures.values()), [])[:1]
    failed = [r for r in records if r.failed]
    lead: list[Markup | str] = [figure(drawing, caption) for _, drawing, caption in first]
    if failed:
        lead[:0] = [paragraph(f"{len(failed)} cells failed and are left out: {failed[0].result.get('message', '')}")]
    main = render_page(
        title=TITLE,
        answer=answer,
        lead=lead,
        sections=[glance(analysed), _further(analysed, concluded), related_section(folder)],
        contents=False,
        **foot,
    )
    shown = _inline(pictures)
    if shown:
        key = next(iter(shown))
        shown[key] = shown[key][1:]  # it stands on the first page
    evidence = render_page(
        title=f"{TITLE}: the evidence",
        answer=answer,
        sections=[
            Section("What is asked", [paragraph(_ASKED)]),
            *evidence_sections(analysed, concluded),
            *family_sections(analysed, shown),
            *guard_sections(analysed),
            *run_sections(design, analysed),
        ],
        **foot,
    )
    return main, evidence


_ASKED = (
    "The paper claims that layer-wise thresholds make the number of steps follow max_i d_i, the largest layer, instead "
    "of d, the number of all parameters. With n layers of width w both grow, so both are varied. alpha is the exponent "
    "of max_i d_i, beta that of d. Steps that follow max_i d_i have alpha near 1 and beta near 0; steps that follow d "
    "have the reverse. The controls show what that is on a finite grid. An experiment supports a rate; it does not "
    "prove one. " + BOUND
)


def _further(analysed: Sequence[Analysed], concluded: Sequence[Conclusion]) -> Section:
    """Whether the controls came out, and the way to the second page."""
    controls = control_sentence(a.control for a in analysed if a.control and not a.series.borrowed)
    items = [("conclusions", f"{len(concluded)} conclusions, each with its cells")]
    items += [("controls", "the controls against theory"), ("guards", "the exponents by other fits")]
    items += [("tuning", "what was tuned"), ("all-cells", "every cell, with the record of its runs")]
    links = Markup("").join(Markup('<li><a href="evidence.html#{}">{}</a></li>').format(*item) for item in items)
    return Section("Evidence", [paragraph(controls), Markup("<ul>{}</ul>").format(links)])


def _inline(pictures: Pictures) -> Pictures:
    """Those that stand in the page, so that it stays below 3 MB: with many families one a family and start."""
    if len(pictures) <= _MANY:
        return {key: list(drawings) for key, drawings in pictures.items()}
    return {key: drawings[: None if key[0] in _MAIN else 1] for key, drawings in pictures.items()}
