"""The ledger's page: the table of verdicts, then a section per claim. A view of the records; it judges nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from helene.lab.report import index_page, pages
from helene.lab.runs.provenance import provenance
from theory.ledger import book
from theory.ledger.claim import RULE, Verdict
from theory.ledger.typeset import typeset

Record = Mapping[str, Any]
Figures = Mapping[str, Callable[[], str]]

_KINDS = {
    "witness": "Witness",
    "search": "Search",
    "proof": "Proof",
    "units": "Units",
    "undefined": "Undefined",
    "missing": "Missing",
    "check": "Check",
}
_TARGETS = {"printed": "", "kindest": "against the kindest reading", "repaired": "of the repaired statement"}
_MEANING = {
    "holds": "true as printed: a proof re-derived, and a search that refutes false twins but not the claim",
    "holds_after_repair": "false or unclear as printed, true once repaired, with what it asserts kept",
    "refuted": "false as printed and in the kindest reading that keeps its point",
    "ill_posed": "without a truth value: undefined symbols, or sides of different units",
    "not_decidable": "the paper does not print what is needed",
}


def write(records: Sequence[Record], figures: Figures, reports: Path, proofs: book.Proofs) -> list[Path]:
    """Writes ``theory/index.html`` under ``reports`` and rebuilds the index of all reports; returns both paths."""
    folder = reports / "theory"
    files = [(name, f"ledger.{name.lower()}") for name in ("CSV", "Parquet", "JSON")]
    downloads = [(name, file) for name, file in files if (folder / file).is_file()]
    page = pages.write_report_text(folder / "index.html", render(records, figures, proofs, downloads))
    return [page, index_page.write_index(reports)]


def render(
    records: Sequence[Record],
    figures: Figures | None = None,
    proofs: book.Proofs | None = None,
    downloads: Sequence[tuple[str, str]] = (),
) -> str:
    """The page as text."""
    proofs = proofs or {}
    sections = [pages.Section("Verdicts", [*_legend(records), *_tables(records), _proof_table(proofs)], "verdicts")]
    for title in _section_titles(records):
        body = [piece for entry in records if entry["section"] == title for piece in _claim(entry, figures or {})]
        sections.append(pages.Section(title, body))
    sections.append(pages.Section("Statements proved in their place", _proofs(proofs), "proofs"))
    return pages.render_page(
        title=book.TITLE,
        answer=book.headline(records, proofs),
        sections=sections,
        command=book.COMMAND,
        provenance=provenance(book.COMMAND),
        downloads=downloads,
        measured="the machine that drew it, in the same run",
    )


def _section_titles(records: Sequence[Record]) -> list[str]:
    return list(dict.fromkeys(entry["section"] for entry in records))


def _legend(records: Sequence[Record]) -> list[Markup]:
    number = book.counts(records)
    rows = [(pages.badge(verdict), number[verdict], _MEANING[verdict]) for verdict in Verdict]
    if number.get("none"):
        rows.append((pages.badge("failed", "no verdict"), number["none"], "its checks failed or did not run"))
    return [
        pages.table(("verdict", "claims", "meaning"), rows),
        pages.paragraph(
            "A verdict is what the checks of this run found; a printed proof is judged apart from its statement. "
            "`pytest theory/ --claim L7` runs one claim in seconds."
        ),
        pages.paragraph(RULE),
        pages.paragraph(
            "A constant of a true statement has a false value beside it, with which the same search finds a "
            "counterexample and the same proof fails; the best constant lies between the two, and the factor between "
            "them is stated. A proof that rests on other claims names them, and falls with them."
        ),
    ]


def _tables(records: Sequence[Record]) -> list[Markup]:
    pieces = []
    for title in _section_titles(records):
        entries = [entry for entry in records if entry["section"] == title]
        rows = [
            (
                Markup('<a href="#{0}" style="white-space: nowrap">{0}</a>').format(entry["id"]),
                _verdicts(entry),
                _sentence(entry),
            )
            for entry in entries
        ]
        pieces.append(pages.table(("claim", "verdict", "what was found"), rows, caption=title))
    return pieces


def _verdict(word: str | None) -> Markup:
    return pages.badge(word) if word else pages.badge("failed", "no verdict")


def _verdicts(entry: Record) -> Markup:
    """The verdict, and below it that on the printed proof: one column, for a phone's sake."""
    verdict = _verdict(entry["verdict"])
    if not entry["proof"]:
        return verdict
    return verdict + Markup("<br>") + pages.badge(entry["proof"], f"proof {entry['proof']}")


def _sentence(entry: Record) -> str:
    return f"FAILS: {entry['failures'][0]}" if entry["failures"] else entry["answer"]


def _claim(entry: Record, figures: Figures) -> list[Markup]:
    """A claim's section."""
    head = Markup('<h3 id="{0}">{0} {1}{2}</h3>').format(
        entry["id"],
        _verdict(entry["verdict"]),
        Markup(" {}").format(pages.badge(entry["proof"], f"printed proof {entry['proof']}")) if entry["proof"] else "",
    )
    pieces = [head]
    if entry["failures"]:
        pieces.append(Markup("<p><strong>This run fails here:</strong> {}</p>").format("; ".join(entry["failures"])))
    if not entry["module"]:
        return pieces
    pieces.append(_labelled("Claim", entry["statement"], Markup("<small>— {}</small>").format(entry["place"])))
    pieces.append(_labelled("Found", entry["answer"]))
    witnesses = [check for check in entry["checks"] if check["kind"] == "witness"]
    pieces += [_labelled(_title(check), check["text"], _mark(check)) for check in witnesses]
    if entry["repair"]:
        pieces.append(_labelled("Repaired", entry["repair"]))
    if entry["note"]:
        pieces.append(_labelled("Note", entry["note"]))
    if entry["id"] in figures:
        pieces.append(Markup("<figure>{}</figure>").format(_inline(figures[entry["id"]]())))
    others = [check for check in entry["checks"] if check["kind"] != "witness"]
    if others:
        pieces.append(pages.details("Evidence", [piece for check in others for piece in _check(check)]))
    if entry["reading"]:
        pieces.append(pages.details(f"A reading, judged: {entry['reading']['verdict']}", _reading(entry["reading"])))
    if entry["proof_lines"]:
        pieces.append(pages.details("The printed proof, line by line", [_lines(entry["proof_lines"])]))
    command = f"pytest theory/ --claim {entry['id']}"
    seconds = pages.number(entry["duration_seconds"], 2)
    pieces.append(
        Markup('<p class="rerun"><code>{}</code> ({} s; <code>{}</code>)</p>').format(command, seconds, entry["module"])
    )
    return pieces


def _labelled(label: str, text: str, more: Markup | str = "") -> Markup:
    """A paragraph that opens with a label; ``more`` follows its text."""
    body = Markup(re.sub(r"theory/proofs/\w+/(\w+\.md)", r'<a href="#\1">\g<0></a>', str(typeset(text))))
    first, closing, rest = body.partition("</p>")
    start = Markup("<p><strong>{}.</strong> ").format(label) + Markup(first.removeprefix("<p>"))
    return (
        start + Markup(" {}").format(more) + Markup(closing) + Markup(rest) if more else start + closing + Markup(rest)
    )


def _title(check: Record) -> str:
    return " ".join(filter(None, (_KINDS[check["kind"]], _TARGETS[check["target"]])))


def _mark(check: Record) -> Markup:
    return pages.badge("passed", "confirmed") if check["confirmed"] else pages.badge("failed", "not confirmed")


def _check(check: Record) -> list[Markup]:
    found = Markup("{} {} s: {}").format(_mark(check), pages.number(check["seconds"], 2), check["detail"])
    pieces = [_labelled(_title(check), check["text"])]
    if check["steps"]:
        steps = (
            Markup("<li>{} <small>({}{})</small></li>").format(
                typeset(step["text"], inline=True),
                "by machine" if step["by_machine"] else "by the reader",
                _cited(step["cites"]),
            )
            for step in check["steps"]
        )
        pieces.append(Markup("<ul>{}</ul>").format(Markup("").join(steps)))
    return [*pieces, Markup("<p>{}</p>").format(found)]


def _cited(ids: Sequence[str]) -> Markup:
    links = Markup(", ").join(Markup('<a href="#{0}">{0}</a>').format(id) for id in ids)
    return Markup("; rests on {}").format(links) if ids else Markup("")


def _reading(reading: Record) -> list[Markup]:
    pieces = [_labelled("Reading", reading["statement"], _verdict(reading["verdict"]))]
    pieces += [piece for check in reading["checks"] for piece in _check(check)]
    return [*pieces, _labelled("Repaired", reading["repair"])] if reading["repair"] else pieces


def _lines(lines: Sequence[Record]) -> Markup:
    tones = {"false": "wrong", "unjustified": "gap", "slip": "ill_posed", "sound": "sound", "open": "failed"}
    names = {"slip": "misprint"}
    rows = [
        (
            number,
            pages.badge(tones[line["status"]], str(names.get(line["status"], line["status"]))),
            typeset(line["text"]) + Markup("").join(typeset(witness) for witness in line["witnesses"]),
        )
        for number, line in enumerate(lines, start=1)
    ]
    return pages.table(("", "status", "line, and the witness against it"), rows)


def _inline(svg: str) -> Markup:
    start = svg.find("<svg")
    return Markup(svg[max(0, start) :].replace(' xmlns="http://www.w3.org/2000/svg"', "", 1))


def _proof_table(proofs: book.Proofs) -> Markup:
    """The pages of ``theory/proofs`` with what their checks came to in this run."""
    rows, paths = [], book.proof_pages()
    for name, found in book.proof_counts(proofs).items():
        title = _proof_page(paths[name])[0]
        rows.append((Markup('<a href="#{0}.md">{1}</a>').format(name, title), _outcome(found), found["seconds"]))
    return pages.table(("page", "its checks", "seconds"), rows, caption="Statements proved in their place")


def _outcome(found: Mapping[str, Any]) -> Markup:
    if not found["checks"]:
        return pages.badge("failed", "none ran")
    if found["passed"] < found["checks"]:
        return pages.badge("failed", f"{found['checks'] - found['passed']} of {found['checks']} fail")
    return pages.badge("passed", f"{found['checks']} passed")


def _proofs(proofs: book.Proofs) -> list[Markup]:
    """The pages of ``theory/proofs``: the overview, bound over count, then each page folded with its checks."""
    paths = book.proof_pages()
    pieces = [_proof_page(book.PROOFS / "README.md")[1], _proof_page(paths["step_counts"])[1]]
    for name, found in book.proof_counts(proofs).items():
        title, body = _proof_page(paths[name])
        rows = [(_passed(check), pages.number(check["seconds"], 2), check["text"]) for check in proofs.get(name, ())]
        table = pages.table(("", "seconds", "check"), rows, caption="Checks of this run", numeric=[1])
        command = Markup('<p class="rerun"><code>pytest theory/proofs/{}/test_{}.py</code></p>').format(
            paths[name].parent.name, name
        )
        inside = [table, command] if name == "step_counts" else [body, table, command]
        summary = Markup("{} {}").format(title, _outcome(found))
        pieces.append(Markup('<div id="{}.md">{}</div>').format(name, pages.details(summary, inside)))
    return pieces


def _passed(check: Mapping[str, Any]) -> Markup:
    return pages.badge("passed", "passed") if check["passed"] else pages.badge("failed", "fails")


def _proof_page(path: Path) -> tuple[str, Markup]:
    """Title and body, drawings inline; links to its neighbours lead to their place on this page."""
    title, _, text = path.read_text(encoding="utf-8").partition("\n")
    body = re.sub(r'href="(?:\.\./)?(?:\w+/)?(\w+\.md)"', r'href="#\1"', str(_demoted(typeset(text))))
    body = re.sub(r'<img src="(\w+\.svg)"[^>]*>', lambda match: str(_drawing(path.with_name(match.group(1)))), body)
    return title.lstrip("# "), Markup(body)


def _drawing(path: Path) -> Markup:
    return Markup("<figure>{}</figure>").format(_inline(path.read_text(encoding="utf-8")))


def _demoted(html: Markup) -> Markup:
    """Headings two levels down, to stand inside a section."""
    text = str(html)
    for level in (3, 2, 1):
        text = text.replace(f"<h{level}>", f"<h{level + 2}>").replace(f"</h{level}>", f"</h{level + 2}>")
    return Markup(text)
