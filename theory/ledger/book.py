"""The ledger: records of what a run found, the table in the terminal, the files."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from helene.lab.report.page_footer import write_rows
from helene.lab.report.report_files import write_report_text, write_summary
from theory.ledger import library
from theory.ledger.claim import Claim, Evidence, Line, Proof, Verdict, Witness
from theory.ledger.ids import IDS, SECTIONS
from theory.ledger.judge import show
from theory.ledger.verdict import Finding, Judgement

PROOFS = library.HERE / "proofs"
#: For each page of ``theory/proofs``, its checks: text, passed, seconds.
Proofs = Mapping[str, Sequence[Mapping[str, Any]]]
TITLE = "The claims of the paper, judged"
COMMAND = "pytest theory/"


def section_of(id: str) -> str:
    """The ledger's section of an id."""
    return next((name for name, ids in SECTIONS.items() if id in ids), "Algorithm 1, statements of our own")


def record(judgement: Judgement, module: str = "") -> dict[str, Any]:
    """A judgement as one record of ``ledger.json``."""
    claim = judgement.claim
    return {
        "id": claim.id,
        "section": section_of(claim.id),
        "place": claim.place,
        "statement": claim.statement,
        "answer": claim.answer,
        "verdict": judgement.verdict,
        "proof": judgement.proof,
        "witness": _witness_record(claim, judgement.findings),
        "repair": claim.repair,
        "reading": None
        if judgement.reading is None
        else {
            "statement": judgement.reading.claim.statement,
            "verdict": judgement.reading.verdict,
            "witness": _witness_record(judgement.reading.claim, judgement.reading.findings),
            "repair": judgement.reading.claim.repair,
            "checks": _checks(judgement.reading.claim, judgement.reading.findings),
        },
        "checks": _checks(claim, judgement.findings),
        "proof_lines": [_line_record(line, status, detail) for line, status, detail in judgement.lines],
        "note": claim.note,
        "failures": list(judgement.failures),
        "module": module,
        "duration_seconds": judgement.seconds,
    }


def absent(id: str) -> dict[str, Any]:
    """The record of a claim that no module judges."""
    return {
        "id": id,
        "section": section_of(id),
        "place": "",
        "statement": "",
        "answer": "",
        "verdict": None,
        "proof": None,
        "witness": None,
        "repair": None,
        "reading": None,
        "checks": [],
        "proof_lines": [],
        "note": "",
        "failures": ["no module judges this claim"],
        "module": "",
        "duration_seconds": 0.0,
    }


def _witness_record(claim: Claim, findings: Sequence[Finding]) -> list[dict[str, Any]] | None:
    found = [
        {
            "text": evidence.text,
            "target": evidence.target,
            "instance": {name: show(value) for name, value in evidence.instance.items()},
            "lhs": show(evidence.recorded[0]),
            "relation": evidence.relation,
            "rhs": show(evidence.recorded[1]),
        }
        for evidence, finding in zip(claim.evidence, findings, strict=True)
        if isinstance(evidence, Witness) and finding.confirmed
    ]
    return found or None


def _checks(claim: Claim, findings: Sequence[Finding]) -> list[dict[str, Any]]:
    return [_check_record(evidence, finding) for evidence, finding in zip(claim.evidence, findings, strict=True)]


def _check_record(evidence: Evidence, finding: Finding) -> dict[str, Any]:
    return {
        "kind": finding.kind.__name__.lower(),
        "target": finding.target,
        "confirmed": finding.confirmed,
        "text": evidence.text,
        "detail": finding.detail,
        "powers": [dataclasses.asdict(power) for power in finding.powers],
        "steps": [
            {"text": step.text, "by_machine": step.check is not None, "cites": list(step.cites)}
            for step in evidence.steps
        ]
        if isinstance(evidence, Proof)
        else [],
        "seconds": finding.seconds,
    }


def _line_record(line: Line, status: str, detail: str) -> dict[str, Any]:
    witnesses = [witness.text for witness in (line.literal, line.kindest, line.gap) if witness is not None]
    return {"text": line.text, "status": status, "witnesses": witnesses, "detail": detail}


def table(records: Sequence[Mapping[str, Any]], width: int = 120) -> list[str]:
    """The table of verdicts as lines of text."""
    head = f"{'claim':<16} {'verdict':<19} {'proof':<6} {'seconds':>7}  "
    lines = [head + "what was found", "-" * min(width, len(head) + 40)]
    for entry in records:
        flag = "  FAILS: " + entry["failures"][0] if entry["failures"] else ""
        text = flag.strip() or entry["answer"]
        start = f"{entry['id']:<16} {entry['verdict'] or '-':<19} {entry['proof'] or '-':<6} "
        start += f"{entry['duration_seconds']:>7.2f}  "
        room = max(20, width - len(start))
        lines.append(start + (text if len(text) <= room else text[: room - 1] + "…"))
    return lines


def details(entry: Mapping[str, Any], width: int = 120) -> list[str]:
    """What one record says of its claim, in full."""
    said = [("claim", f"{entry['statement']} ({entry['place']})"), ("found", entry["answer"])]
    for witness in entry["witness"] or ():
        instance = ", ".join(f"{name} = {value}" for name, value in witness["instance"].items())
        said.append(
            (
                "witness",
                f"{witness['text']} [{instance}: {witness['lhs']} {witness['relation']} {witness['rhs']} fails]",
            )
        )
    said += [("repair", entry["repair"])] if entry["repair"] else []
    said += [("note", entry["note"]), ("checks", entry["module"])]
    lines = ["", entry["id"]]
    for name, text in said:
        first, rest = f"  {name + ':':<9}", " " * 11
        lines += (
            textwrap.wrap(" ".join(text.split()), width, initial_indent=first, subsequent_indent=rest) if text else []
        )
    return lines


def counts(records: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """How many claims of the paper have each verdict; ``none`` where there is no verdict."""
    result = {str(verdict): 0 for verdict in Verdict}
    for entry in records:
        if entry["id"] in IDS:
            key = entry["verdict"] or "none"
            result[key] = result.get(key, 0) + 1
    return result


_SAID = {
    "holds": ("holds", "hold"),
    "holds_after_repair": ("holds after repair", "hold after repair"),
    "refuted": ("is refuted", "are refuted"),
    "ill_posed": ("is ill posed", "are ill posed"),
    "not_decidable": ("is not decidable", "are not decidable"),
    "none": ("has no verdict", "have no verdict"),
}


NO_METHOD = (
    "No method that sees two losses a step can take O(max_i d_i) steps. On quadratics it needs order d, whatever the "
    "layers (theory/proofs/limits/two_evaluations.md)."
)


def answer(records: Sequence[Mapping[str, Any]]) -> str:
    """One sentence for the index of the reports."""
    number = counts(records)
    parts = [f"{count} {_SAID[name][count > 1]}" for name, count in number.items() if count]
    return f"Of {sum(number.values())} claims of the paper " + ", ".join(parts) + "."


def headline(records: Sequence[Mapping[str, Any]], proofs: Proofs) -> str:
    """`answer`, before what no method can do where this run has checked every step of that proof."""
    checks = proofs.get("two_evaluations", ())
    proved = bool(checks) and all(check["passed"] for check in checks)
    return answer(records) + (f" {NO_METHOD}" if proved else "")


def proof_pages() -> dict[str, Path]:
    """The pages of ``theory/proofs`` by name, in their order."""
    found = (path for path in PROOFS.rglob("*.md") if path.stem != "README")
    return {path.stem: path for path in sorted(found, key=lambda path: path.stem)}


def proof_counts(proofs: Proofs) -> dict[str, dict[str, Any]]:
    """For each page of ``theory/proofs``, in their order: its checks in this run, how many passed, their seconds."""
    return {
        page: {
            "checks": len(proofs.get(page, ())),
            "passed": sum(check["passed"] for check in proofs.get(page, ())),
            "seconds": round(sum(check["seconds"] for check in proofs.get(page, ())), 3),
        }
        for page in proof_pages()
    }


def proof_lines(proofs: Proofs) -> list[str]:
    """The outcome of the proofs' checks as lines of text."""
    lines = ["Statements proved in their place (theory/proofs):"]
    for page, found in proof_counts(proofs).items():
        lines.append(f"{page:<19} {found['passed']:>3} of {found['checks']:>3} checks pass {found['seconds']:>9.2f} s")
    return lines


_COLUMNS = ("id", "section", "place", "verdict", "proof", "answer", "statement", "module", "duration_seconds")


def write(records: Sequence[Mapping[str, Any]], reports: Path, proofs: Proofs) -> Path:
    """Writes the ledger, as JSON and as a table, and its summary under ``reports``; returns the JSON's path."""
    text = json.dumps(list(records), ensure_ascii=False, indent=1) + "\n"
    path = write_report_text(reports / "theory" / "ledger.json", text)
    found = {"counts": counts(records), "proofs": proof_counts(proofs)}
    said = headline(records, proofs)
    write_summary(reports, "theory", title=TITLE, answer=said, command=COMMAND, front={"says": said}, **found)
    rows = [[entry[name] for name in _COLUMNS] for entry in records]
    write_rows(reports / "theory" / "ledger", _COLUMNS, rows)
    return path
