"""One-file HTML pages: inline CSS and SVG, no network, no scripts; for screens, phones and print, light and dark."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from helene.lab.report import page_footer
from helene.lab.report.report_files import write_report_text, write_summary

if TYPE_CHECKING:
    from helene.lab.report.drawing import Drawing

__all__ = [
    "Section",
    "badge",
    "code_block",
    "details",
    "figure",
    "interval",
    "number",
    "paragraph",
    "render_page",
    "subtitle",
    "table",
    "write_report_text",
    "write_summary",
]

TEMPLATES = Environment(
    loader=PackageLoader("helene.lab.report"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TONES = {
    ("good", "✓"): ("consistent", "holds", "reached", "sound", "passed"),
    ("bad", "✗"): ("not_consistent", "refuted", "wrong", "failed", "diverged", "non_finite", "out_of_memory", "error"),
    ("warn", "!"): ("broken_instrument", "holds_after_repair", "ill_posed", "gap", "stalled", "incomplete"),
}
_COLUMNS_ON_A_PHONE, _CARDS_ON_A_PHONE = 4, 16
_BADGES = {word: look for look, words in _TONES.items() for word in words}


@dataclass(frozen=True)
class Section:
    """A titled part of a page.

    Attributes:
        title: Its heading.
        body: Pieces of HTML made by the helpers below; plain strings are escaped.
        anchor: Its address within the page; default made from the title.
        short: What the table of contents calls it; default the title.
    """

    title: str
    body: Sequence[Markup | str]
    anchor: str = ""
    short: str = ""


def render_page(
    *,
    title: str,
    answer: Markup | str,
    sections: Sequence[Section],
    command: str,
    provenance: Mapping[str, Any] | None = None,
    lead: Sequence[Markup | str] = (),
    back: str = "../index.html",
    downloads: Sequence[tuple[str, str]] = (),
    measured: str = "",
    contents: bool = True,
) -> str:
    """A whole page as text.

    Args:
        title: Heading and window title.
        answer: What was found, in one sentence; it stands first.
        sections: In order.
        command: What remakes the page.
        provenance: From :func:`helene.lab.runs.provenance.provenance`, shown at the foot.
        lead: Pieces between the answer and the contents: badges, a picture.
        back: Where "all reports" leads; empty for no such link.
        downloads: (label, address) of each file with the page's numbers.
        measured: On what the numbers were measured, and when.
        contents: Whether more than two sections get a table of contents.
    """
    addressed = [Section(s.title, s.body, s.anchor or _slug(s.title), s.short or s.title) for s in sections]
    page = TEMPLATES.get_template("page.html").render(
        title=title,
        answer=_with_code(answer),
        sections=addressed,
        command=command,
        lead=lead,
        back=back,
        facts=page_footer.facts(provenance, command, measured),
        contents=contents and len(addressed) > 2,
        downloads=downloads,
        find_record=page_footer.FIND_RECORD,
        citation=page_footer.CITATION,
    )
    return share_outlines(page)


_OUTLINE = re.compile(r'<path id="([^"]+)" (d="[^"]+" transform="scale\(0\.015625\)")/>\n?')


def share_outlines(page: str) -> str:
    """The outlines of letters, a third of each drawing, once for all drawings of the page."""
    names: dict[str, str] = {}
    shared: dict[str, str] = {}
    for name, outline in _OUTLINE.findall(page):
        names[name] = shared.setdefault(outline, f"o{len(shared):x}")
    if len(names) == len(shared):  # one drawing at most
        return page
    page = _OUTLINE.sub("", page)
    page = re.sub(r'(<use href="#)([^"]+)"', lambda m: f'{m[1]}{names.get(m[2], m[2])}"', page)
    outlines = "".join(f'<path id="{name}" {outline}/>' for outline, name in shared.items())
    hidden = f'<svg width="0" height="0" style="position: absolute" aria-hidden="true"><defs>{outlines}</defs></svg>'
    return page.replace("<body>", f"<body>\n{hidden}", 1)


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "section"


def paragraph(text: Markup | str) -> Markup:
    """A paragraph; what stands between backticks is set as code."""
    return Markup("<p>{}</p>").format(_with_code(text))


def _with_code(text: Markup | str) -> Markup:
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def subtitle(text: str, anchor: str = "") -> Markup:
    """A heading within a section, with an address of its own."""
    return Markup('<h3 id="{}">{}</h3>').format(anchor or _slug(text), text)


def code_block(text: str) -> Markup:
    """Lines of code or a command."""
    return Markup("<pre><code>{}</code></pre>").format(text)


def details(title: str, body: Sequence[Markup | str], anchor: str = "") -> Markup:
    """Pieces folded away under a title. A link to the anchor, which is that of the pieces, unfolds them."""
    pieces = Markup("\n").join(body)
    inside = Markup('<div id="{}">{}</div>').format(anchor, pieces) if anchor else pieces
    return Markup("<details><summary>{}</summary>{}</details>").format(title, inside)


def badge(verdict: str, text: str = "") -> Markup:
    """A coloured badge for a verdict or status of the design, with a sign that works without colour.

    Args:
        verdict: The word as it stands in JSON; an unknown one gets a neutral badge.
        text: What to show in its place.
    """
    tone, sign = _BADGES.get(verdict, ("calm", "○"))
    return Markup('<span class="badge {}">{} {}</span>').format(tone, sign, text or verdict.replace("_", " "))


def table(
    headers: Sequence[Markup | str],
    rows: Sequence[Sequence[Any]],
    *,
    caption: Markup | str = "",
    anchors: Sequence[str] = (),
    numeric: Sequence[int] | None = None,
) -> Markup:
    """A table that scrolls sideways where it is too wide; on a phone, many columns fold into a card a row.

    Args:
        headers: One per column.
        rows: Cells: Markup is kept, text escaped (backticks are code), numbers go through :func:`number`, None is a
            dash.
        caption: Above the table.
        anchors: One address per row, so that a number elsewhere can link to its row.
        numeric: Columns to align right; default those that hold numbers alone.

    Raises:
        ValueError: If a row has another number of cells than there are headers.
    """
    for row in rows:
        if len(row) != len(headers):
            raise ValueError(f"each row must have {len(headers)} cells, one per header, got {len(row)}: {row!r}")
    right = _numeric_columns(rows, len(headers)) if numeric is None else set(numeric)
    # The caption stands before what scrolls sideways, so that it is read whole.
    parts = [Markup('<p class="caption">{}</p>').format(_with_code(caption))] if caption else []
    folds = len(headers) > _COLUMNS_ON_A_PHONE and len(rows) <= _CARDS_ON_A_PHONE
    parts.append(Markup('<div class="scroll"><table{}>').format(Markup(' class="folds"' if folds else "")))
    names = ["num" if column in right else "" for column in range(len(headers))]
    kinds = [_class(name) for name in names]
    named = [Markup(' data-head="{}"').format(_plain(head)) if folds else Markup("") for head in headers]
    heads = [Markup("<th{}>{}</th>").format(kind, head) for kind, head in zip(kinds, headers, strict=True)]
    parts.append(Markup("<thead><tr>{}</tr></thead><tbody>").format(Markup("").join(heads)))
    for index, row in enumerate(rows):
        anchor = Markup(' id="{}"').format(anchors[index]) if index < len(anchors) and anchors[index] else ""
        cells = [
            Markup("<td{}{}>{}</td>").format(_class(name, "none" if folds and cell is None else ""), head, _cell(cell))
            for name, head, cell in zip(names, named, row, strict=True)
        ]
        parts.append(Markup("<tr{}>{}</tr>").format(anchor, Markup("").join(cells)))
    parts.append(Markup("</tbody></table></div>"))
    return Markup("\n").join(parts)


def _class(*names: str) -> Markup:
    given = " ".join(filter(None, names))
    return Markup(' class="{}"').format(given) if given else Markup("")


def _plain(head: Markup | str) -> str:
    return head.striptags() if isinstance(head, Markup) else head


def _is_number(cell: Any) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def _numeric_columns(rows: Sequence[Sequence[Any]], count: int) -> set[int]:
    columns = [[row[j] for row in rows if row[j] is not None] for j in range(count)]
    return {j for j, cells in enumerate(columns) if cells and all(map(_is_number, cells))}


def _cell(cell: Any) -> Markup:
    if isinstance(cell, Markup):
        return cell
    if isinstance(cell, bool):
        return escape("yes" if cell else "no")
    return escape(number(cell)) if cell is None or _is_number(cell) else _with_code(str(cell))


def figure(drawing: Drawing, caption: Markup | str) -> Markup:
    """The drawing inline, with its caption."""
    svg = drawing.svg.replace(' xmlns="http://www.w3.org/2000/svg"', "", 1)  # HTML knows the namespace
    return Markup("<figure>{}<figcaption>{}</figcaption></figure>").format(Markup(svg), _with_code(caption))


def number(value: float | None, digits: int = 3) -> str:
    """A number for people: ``digits`` significant digits, thousands set apart, powers of ten, ∞; – for None and nan."""
    if value is None or value != value:
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if isinstance(value, int):
        text = f"{value:,}"
    else:
        rounded = float(f"{value:.{digits}g}")
        size = abs(rounded)
        if size >= 10**7 or 0 < size < 10**-4:
            mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
            raised = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
            text = f"{mantissa}×10{raised}"
        else:
            places = max(0, digits - 1 - math.floor(math.log10(size))) if size else 0
            text = f"{rounded:,.{places}f}"
    whole = text.partition(".")[0].lstrip("-")
    text = text.replace(",", "\N{NARROW NO-BREAK SPACE}" if len(whole) > 5 else "")
    return text.replace("-", "−")


def two_places(value: float) -> str:
    """A number for people to two places: a true minus, none before a zero."""
    return f"{round(value, 2) + 0.0:.2f}".replace("-", "−")


def interval(low: float, high: float) -> str:
    """``[low, high]`` for people, to a tenth of its width or better; it does not break over lines."""
    width = high - low
    if math.isfinite(width) and width > 0:
        exponent = math.floor(math.log10(width / 2))
        ends = [f"{end:.{max(0, -exponent)}f}" if abs(end) < 10**5 else number(end) for end in (low, high)]
    else:
        ends = [number(end) for end in (low, high)]
    return "[{}, {}]".format(*(end.replace("-", "−") for end in ends)).replace(" ", "\N{NO-BREAK SPACE}")
