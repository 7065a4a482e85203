"""One-file HTML pages: inline CSS and SVG, no network, for screens, phones, print, light and dark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

if TYPE_CHECKING:
    from helene.lab.figures import Drawing


@dataclass(frozen=True)
class Section:
    """A titled part of a page; ``body`` is pieces of HTML made by the helpers below (plain strings are escaped)."""

    title: str
    body: Sequence[Markup | str]
    anchor: str = ""


def render_page(
    *,
    title: str,
    answer: str,
    sections: Sequence[Section],
    command: str,
    provenance: Mapping[str, Any] | None = None,
    lead: Sequence[Markup | str] = (),
    back: bool = True,
) -> str:
    """A whole page: title, the answer in one sentence, ``lead``, contents, sections, command, provenance footer."""
    raise NotImplementedError


def paragraph(text: str) -> Markup:
    """A paragraph; text is escaped, `code` between backticks is set as code."""
    raise NotImplementedError


def badge(verdict: str) -> Markup:
    """A coloured badge for a verdict or status of the design, with a sign that works without colour."""
    raise NotImplementedError


def table(
    headers: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    caption: str = "",
    anchors: Sequence[str] = (),
    numeric: Sequence[int] | None = None,
) -> Markup:
    """A table that scrolls sideways on a phone; numbers right-aligned, None shown as a dash, Markup kept."""
    raise NotImplementedError


def figure(drawing: Drawing, caption: str) -> Markup:
    """The drawing inline, with its caption and alternative text."""
    raise NotImplementedError


def number(value: float | None, digits: int = 3) -> str:
    """A number for people: significant digits, thin-spaced thousands, ∞ and – for inf and None."""
    raise NotImplementedError


def interval(low: float, high: float, digits: int = 3) -> str:
    """``[low, high]`` for people."""
    raise NotImplementedError


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all, its folder made.

    Raises:
        ValueError: If it cannot be written; the message says where and why.
    """
    raise NotImplementedError


def write_summary(out: Path, part: str, *, title: str, answer: str, command: str, **more: Any) -> Path:
    """Write ``out/part/summary.json`` (sorted keys, indented, inf as in records) and return its path."""
    raise NotImplementedError


def write_index(out: Path) -> Path:
    """(Re)build ``out/index.html`` from the parts' summaries; parts not made show the command that makes them."""
    raise NotImplementedError
