"""The files of ``reports/``: a folder per part with its summary, written whole or not at all."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from helene.inputs import files
from helene.lab.runs import canonical


@dataclass(frozen=True)
class Leaf:
    """A page of a part beside its main one: ``NAME.html`` with title, answer and command in ``NAME.json``.

    Attributes:
        title: Its heading.
        answer: What it found.
        link: Relative to the folder that was searched.
    """

    title: str
    answer: str
    link: str


@dataclass(frozen=True)
class Part:
    """A part of the reports, as the index page shows it.

    Attributes:
        name: Its folder.
        title: Its heading.
        answer: What it found, or that it is not made yet.
        command: What makes it.
        made: Whether its summary is there.
        link: Its page, relative to the index; empty when there is none.
        leaves: Its further pages, their links relative to the index.
        front: What it gives to the top of the index page, see `helene.lab.report.index_page.write_index`.
        toy: Whether it shows the way only, so that it stands last.
    """

    name: str
    title: str
    answer: str
    command: str
    made: bool = False
    link: str = ""
    leaves: tuple[Leaf, ...] = ()
    front: Mapping[str, Any] = field(default_factory=dict)
    toy: bool = False


_KNOWN = (
    Part("llm", "Fine-tuning language models", "", "helene llm pages --out {out}"),
    Part("scaling", "How steps scale with dimension", "", "helene scaling --preset standard --out {out}"),
    Part("theory", "The claims of the paper, judged", "", "pytest theory/ --reports {out}"),
    Part("demo", "A toy: the whole way on a CPU in minutes", "", "helene llm demo --out {out}", toy=True),
)
_NOT_MADE = "Not made yet; the command below makes it."


def write_file(path: Path, write: Callable[[Path], object]) -> Path:
    """`helene.inputs.files.write_whole`, the folder made where it is missing; returns the path.

    Raises:
        ValueError: If it cannot be written; the message says where, why and what to do.
    """

    def write_in_folder(partial: Path) -> None:
        partial.parent.mkdir(parents=True, exist_ok=True)
        write(partial)

    try:
        files.write_whole(path, write_in_folder)
    except OSError as err:
        raise ValueError(str(err)) from err
    return Path(path)


def write_report_text(path: Path, text: str) -> Path:
    """`write_file` of text in UTF-8."""
    return write_file(path, lambda partial: partial.write_text(text, encoding="utf-8"))


def write_summary(out: Path, part: str, *, title: str, answer: str, command: str, **more: Any) -> Path:
    """Write ``out/part/summary.json`` and return its path.

    Args:
        out: The folder of the reports.
        part: The part's folder in it: ``llm``, ``scaling``, ``theory``, ``demo``.
        title: Its heading on the index page.
        answer: One sentence, plain text.
        command: What makes it.
        more: Anything else of use, JSON values; infinities as in records.

    Raises:
        ValueError: If it cannot be written or has no JSON form.
    """
    summary = {"title": title, "answer": answer, "command": command, **more}
    return write_report_text(Path(out) / part / "summary.json", canonical.dumps(summary, indent=1) + "\n")


def read_parts(out: Path) -> list[Part]:
    """The known parts in their order, any other folder with a summary by name before the toy."""
    out = Path(out)
    parts = {path.parent.name for path in out.glob("*/summary.json")}
    names = [part.name for part in _KNOWN]
    others = [Part(name, name, "", "") for name in sorted(parts - set(names))]
    known = [_read_part(out, part) for part in (*_KNOWN, *others)]
    return sorted(known, key=lambda part: part.toy)


def read_leaves(folder: Path) -> list[Leaf]:
    """The further pages in a part's folder and the folders in it, by name; what cannot be read is left out."""
    folder, leaves = Path(folder), []
    for path in sorted([*folder.glob("*.json"), *folder.glob("*/*.json")], key=lambda p: (len(p.parts), p)):
        page = path.with_suffix(".html")
        if path.name == "summary.json" or not page.is_file():
            continue
        try:
            summary = canonical.loads(path.read_text(encoding="utf-8"))
            link = quote(page.relative_to(folder).as_posix())
            leaves.append(Leaf(str(summary["title"]), str(summary["answer"]), link))
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
    return leaves


def _read_part(out: Path, part: Part) -> Part:
    leaves = tuple(replace(leaf, link=f"{quote(part.name)}/{leaf.link}") for leaf in read_leaves(out / part.name))
    return replace(_without_leaves(out, part), leaves=leaves)


def _without_leaves(out: Path, part: Part) -> Part:
    path = out / part.name / "summary.json"
    command = part.command.format(out=shlex.quote(out.name or "reports"))
    if not path.is_file():
        return replace(part, answer=_NOT_MADE, command=command)
    link = f"{quote(part.name)}/index.html" if (path.parent / "index.html").is_file() else ""
    try:
        summary = canonical.loads(path.read_text(encoding="utf-8"))
        title, answer, command = (str(summary[name]) for name in ("title", "answer", "command"))
        front = dict(summary.get("front") or {})
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as err:
        broken = f"Its summary.json cannot be read ({type(err).__name__}); the command below makes it anew."
        return replace(part, answer=broken, command=command, link=link)
    return replace(part, title=title, answer=answer, command=command, made=True, link=link, front=front)
