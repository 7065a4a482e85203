"""The report on scaling: page, summary, exponents and figures in ``OUT/scaling``. Never imports torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from helene.lab.pages import Section, figure, paragraph, render_page, write_index, write_summary, write_text
from helene.lab.records import Record
from synthetic import guards, sections
from synthetic.analysis import Analysed, analyse
from synthetic.answers import Conclusion, answer, conclusions
from synthetic.design import FIRST_ORDER, Design
from synthetic.export import exponents_csv, summary_of
from synthetic.least_steps import BOUND
from synthetic.lines import lines_of
from synthetic.overview import conclusions_section, glance_section
from synthetic.pictures import cuts
from synthetic.related import related_section
from synthetic.results import FAMILIES, collect
from synthetic.runs import write_runs

PART, TITLE = "scaling", "How steps scale with dimension"
_MANY, _MAIN = 8, ("quadratic", "log_cosh")
_DRAWN = ("helene", "mezo", "per_layer", "heavy_ball", *FIRST_ORDER)
_SETTINGS = ("k ", "beta")


def write_report(
    out: Path, design: Design, records: Iterable[Record], command: str, provenance: Mapping[str, Any]
) -> tuple[str, bool]:
    """Write everything under ``out/scaling`` and the index page.

    Args:
        out: The folder of the reports.
        design: The preset that was run.
        records: Its records; missing and failed cells are left out and counted.
        command: What remakes the report.
        provenance: Of this run.

    Returns:
        The answer, and whether every control passed and no cell is missing.

    Raises:
        ValueError: If a file cannot be written.
    """
    found = list(records)
    analysed = analyse(collect(design, found))
    said, concluded = answer(analysed), conclusions(analysed)
    failed = [r for r in found if r.failed]
    pictures = _pictures(analysed)
    folder = Path(out) / PART
    for (family, start), drawings in pictures.items():
        for name, drawing, _ in drawings:
            drawing.save(folder / "figures", f"{family}-{start}-{name}")
    page = render_page(
        title=TITLE,
        answer=said,
        lead=_lead(concluded, failed, pictures),
        sections=_sections(folder, design, analysed, concluded, pictures),
        command=command,
        provenance=provenance,
    )
    write_text(folder / "index.html", page)
    write_text(folder / "exponents.csv", exponents_csv(analysed))
    write_text(folder / "series.jsonl", lines_of(analysed, provenance))
    write_runs(folder / "runs.parquet", analysed)
    write_summary(
        out,
        PART,
        title=TITLE,
        answer=said,
        command=command,
        preset=design.name,
        failed=[{"key": r.key, "message": r.result.get("message", "")} for r in failed],
        provenance=dict(provenance),
        run_seconds=sum(float(r.result.get("run_seconds", 0.0)) for r in found),
        **summary_of(analysed),
    )
    write_index(out)
    sound = all(a.verdict != "broken_instrument" for a in analysed) and not failed
    return said, sound


def _lead(found: Sequence[Conclusion], failed: Sequence[Record], pictures: sections.Pictures) -> list[Markup | str]:
    lines = [
        Markup('{} <a href="#conclusion-{}">Cells</a>').format(c.says, index + 1)
        for index, c in enumerate(found)
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
    pictures: sections.Pictures,
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
    explained = sections.explanations_section(analysed)
    return [
        Section("What is asked", [reading]),
        glance_section(analysed),
        conclusions_section(concluded),
        *([explained] if explained else []),
        related_section(folder),
        *sections.family_sections(analysed, shown),
        guards.controls_section(analysed),
        guards.guards_section(analysed),
        guards.tuning_section(analysed),
        guards.sensitivity_section(analysed),
        sections.design_section(design, analysed),
        sections.cells_section(analysed),
    ]


def _pictures(analysed: Sequence[Analysed]) -> sections.Pictures:
    """All cuts of all families and starts."""
    out: sections.Pictures = {}
    for family, start in dict.fromkeys((a.series.family, a.series.start) for a in analysed):
        rows = [a for a in analysed if (a.series.family, a.series.start) == (family, start) and not a.series.borrowed]
        rows = [a for a in rows if a.series.method in _DRAWN and not a.series.variant.startswith(_SETTINGS)]
        zeroth = [a for a in rows if a.series.method not in FIRST_ORDER]
        first = [a for a in rows if a.series.method in FIRST_ORDER]
        title = FAMILIES.get(family, family)
        found = [(f"zeroth-{name}", d, c) for name, d, c in cuts(zeroth, f"{title}: losses only")]
        found += [(f"first-{name}", d, c) for name, d, c in cuts(first, f"{title}: gradients or Hessians")]
        if found:
            out[family, start] = found
    return out


def _inline(pictures: sections.Pictures) -> sections.Pictures:
    """Those that stand in the page, so that it stays below 3 MB: with many families one a family and start."""
    if len(pictures) <= _MANY:
        return {key: list(drawings) for key, drawings in pictures.items()}
    return {key: drawings[: None if key[0] in _MAIN else 1] for key, drawings in pictures.items()}
