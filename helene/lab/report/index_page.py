"""The page that leads to all parts of the reports."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from helene.lab.report import page_footer
from helene.lab.report.pages import TEMPLATES, share_outlines, table
from helene.lab.report.report_files import Part, read_parts, write_report_text

_TITLE = "HELENE: what holds, what it costs"


def write_index(out: Path) -> Path:
    """(Re)build ``out/index.html`` from the parts' ``summary.json`` and return its path.

    A part's summary may have a ``front``: ``headline`` and ``says`` (a sentence), ``picture`` (file, caption) and
    ``table`` (headers, rows, caption and numeric, as for `helene.lab.report.pages.table`; a cell ``{"best": text}``
    stands out). Parts not made yet are listed with the command that makes them. A summary that cannot be read is listed
    as such: it does not keep the others off the page.

    Raises:
        ValueError: If the page cannot be written.
    """
    parts = read_parts(out)
    page = TEMPLATES.get_template("index.html").render(
        title=next((str(part.front["headline"]) for part in parts if part.front.get("headline")), _TITLE),
        parts=[part for part in parts if not part.toy],
        toys=[part for part in parts if part.toy],
        says=[str(part.front["says"]) for part in parts if part.front.get("says")],
        picture=next((drawn for part in parts if (drawn := _front_picture(Path(out), part))), ""),
        table=next((_front_table(part.front["table"]) for part in parts if part.front.get("table")), ""),
        citation=page_footer.CITATION,
        find_record=page_footer.FIND_RECORD,
    )
    return write_report_text(Path(out) / "index.html", share_outlines(page))


def _front_picture(out: Path, part: Part) -> Markup | None:
    given = part.front.get("picture") or {}
    path = out / part.name / str(given.get("file", ""))
    if path.suffix != ".svg" or not path.is_file():
        return None
    svg = path.read_text(encoding="utf-8").replace(' xmlns="http://www.w3.org/2000/svg"', "", 1)
    return Markup("<figure>{}<figcaption>{}</figcaption></figure>").format(Markup(svg), str(given.get("caption", "")))


def _front_table(given: Mapping[str, Any]) -> Markup:
    return table(given["headers"], given["rows"], caption=given["caption"], numeric=given.get("numeric"))
