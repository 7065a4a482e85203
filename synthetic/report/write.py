"""The report on scaling: page, summary, exponents and figures in ``OUT/scaling``. Never imports torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from helene.lab.report.index_page import write_index
from helene.lab.report.pages import write_report_text, write_summary
from helene.lab.runs.records import Record
from synthetic.analysis.results import collect
from synthetic.analysis.verdicts import Analysed, analyse
from synthetic.design import Design
from synthetic.report.answers import answer, conclusions
from synthetic.report.export import exponents_csv, summary_of
from synthetic.report.lines import lines_of
from synthetic.report.page import TITLE, pages_of
from synthetic.report.pictures import Pictures, pictures_of
from synthetic.report.runs import write_runs

PART = "scaling"


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
    records = list(records)
    failed = [r for r in records if r.failed]
    analysed = analyse(collect(design, records))
    sentence, pictures = answer(analysed), pictures_of(analysed)
    folder = Path(out) / PART
    for (family, start), drawings in pictures.items():
        for name, drawing, _ in drawings:
            drawing.save(folder / "figures", f"{family}-{start}-{name}")
    write_report_text(folder / "exponents.csv", exponents_csv(analysed))
    write_report_text(folder / "series.jsonl", lines_of(analysed, provenance))
    write_runs(folder / "runs.parquet", analysed)
    _write_summary(out, design, records, analysed, sentence, front_of(sentence, pictures), command, provenance)
    concluded = conclusions(analysed)
    main, evidence = pages_of(
        folder,
        design,
        analysed,
        concluded,
        pictures,
        answer=sentence,
        records=records,
        command=command,
        provenance=provenance,
    )
    write_report_text(folder / "index.html", main)
    write_report_text(folder / "evidence.html", evidence)
    write_index(out)
    sound = all(a.verdict != "broken_instrument" for a in analysed) and not failed
    return sentence, sound


def front_of(sentence: str, pictures: Pictures) -> dict[str, Any]:
    """What the index page shows of this part."""
    front: dict[str, Any] = {"says": sentence}
    for (family, start), drawings in list(pictures.items())[:1]:
        name, _, caption = drawings[0]
        front["picture"] = {"file": f"figures/{family}-{start}-{name}.svg", "caption": caption}
    return front


def _write_summary(
    out: Path,
    design: Design,
    records: Sequence[Record],
    analysed: Sequence[Analysed],
    sentence: str,
    front: Mapping[str, Any],
    command: str,
    provenance: Mapping[str, Any],
) -> None:
    failed = [r for r in records if r.failed]
    write_summary(
        out,
        PART,
        title=TITLE,
        answer=sentence,
        command=command,
        preset=design.name,
        failed=[{"key": r.key, "message": r.result.get("message", "")} for r in failed],
        provenance=dict(provenance),
        run_seconds=sum(float(r.result.get("run_seconds", 0.0)) for r in records),
        front=front,
        **summary_of(analysed),
    )
