"""The pages beside the report, the paper's figures and A-GNB, linked from it whichever was written first."""

from __future__ import annotations

from pathlib import Path

from markupsafe import Markup

from helene.lab.report.pages import Section, paragraph, write_report_text
from helene.lab.report.report_files import read_leaves

_BEGIN, _END = "<!-- related:begin -->", "<!-- related:end -->"


def related_section(folder: Path) -> Section:
    """What there is beside ``folder/index.html`` now."""
    return Section("More pages", [Markup(_BEGIN) + _listed(folder) + Markup(_END)])


def refresh(folder: Path) -> None:
    """Put the pages that have come since into ``folder/index.html``, if that is there.

    Raises:
        ValueError: If it cannot be written.
    """
    page = Path(folder) / "index.html"
    if not page.is_file():
        return
    text = page.read_text(encoding="utf-8")
    head, begin, rest = text.partition(_BEGIN)
    _, end, tail = rest.partition(_END)
    if begin and end:
        write_report_text(page, f"{head}{_BEGIN}{_listed(folder)}{_END}{tail}")


def _listed(folder: Path) -> Markup:
    items = [
        Markup('<li><a href="{}">{}</a>: {}</li>').format(leaf.link, leaf.title, leaf.answer)
        for leaf in read_leaves(folder)
    ]
    if items:
        return Markup("<ul>{}</ul>").format(Markup("").join(items))
    return paragraph(
        "None yet: `helene scaling agnb` measures the curvature estimate, and "
        "`helene scaling figure toy`, `ablation`, `floor` and `triggers` remake the paper's figures."
    )
