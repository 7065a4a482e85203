"""The ledger: records of what a run found, their schema, the table in the terminal, the files."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from helene.lab.report_files import write_summary, write_text
from theory.ledger.claim import Claim, Evidence, Line, Proof, ProofVerdict, Search, Target, Verdict, Witness
from theory.ledger.ids import IDS, SECTIONS
from theory.ledger.judge import Finding, Judgement, show

HERE = Path(__file__).parent.parent
TITLE = "The claims of the paper, judged"
COMMAND = "pytest theory/"


def module_paths() -> list[Path]:
    """Every module that may list claims, in order."""
    return sorted(path for path in HERE.rglob("test_*.py") if "__pycache__" not in path.parts)


@cache
def _claims() -> dict[str, tuple[Claim, str]]:
    """Each claim with the path of its module, relative to the repository."""
    found: dict[str, tuple[Claim, str]] = {}
    for path in module_paths():
        name = ".".join((HERE.name, *path.relative_to(HERE).with_suffix("").parts))
        for claim in getattr(importlib.import_module(name), "CLAIMS", ()):
            if claim.id in found:
                raise ValueError(f"{claim.id} is judged twice, the second time in {path.name}; an id has one module")
            found[claim.id] = (claim, path.relative_to(HERE.parent).as_posix())
    return found


def load_claims() -> list[Claim]:
    """All claims of all modules: those of ``ids.py`` in its order, then statements of our own in the modules' order.

    Raises:
        ValueError: If an id is judged twice.
    """
    claims = {id: claim for id, (claim, _) in _claims().items()}
    return [claims[id] for id in IDS if id in claims] + [claims[id] for id in claims if id not in IDS]


def module_of(id: str) -> str:
    """The path of the module that judges an id, relative to the repository."""
    return _claims()[id][1]


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
        "text": finding.text,
        "detail": finding.detail,
        "twin": evidence.twin.text if isinstance(evidence, Search) else None,
        "steps": [{"text": step.text, "by_machine": step.check is not None} for step in evidence.steps]
        if isinstance(evidence, Proof)
        else [],
        "seconds": finding.seconds,
    }


def _line_record(line: Line, status: str, detail: str) -> dict[str, Any]:
    witnesses = [witness.text for witness in (line.literal, line.kindest, line.gap) if witness is not None]
    return {"text": line.text, "status": status, "witnesses": witnesses, "detail": detail}


_TYPES: dict[str, tuple[type, ...]] = {
    "id": (str,),
    "section": (str,),
    "place": (str,),
    "statement": (str,),
    "answer": (str,),
    "verdict": (str, type(None)),
    "proof": (str, type(None)),
    "witness": (list, type(None)),
    "repair": (str, type(None)),
    "reading": (dict, type(None)),
    "checks": (list,),
    "proof_lines": (list,),
    "note": (str,),
    "failures": (list,),
    "module": (str,),
    "duration_seconds": (int, float),
}
_CHECK_TYPES: dict[str, tuple[type, ...]] = {
    "kind": (str,),
    "target": (str,),
    "confirmed": (bool,),
    "text": (str,),
    "detail": (str,),
    "twin": (str, type(None)),
    "steps": (list,),
    "seconds": (int, float),
}


def schema_errors(records: Any) -> list[str]:
    """What is wrong with a parsed ``ledger.json``; empty where nothing is."""
    if not isinstance(records, list):
        return [f"a list of records is wanted, got {type(records).__name__}"]
    errors = []
    for number, entry in enumerate(records):
        name = entry.get("id", f"record {number}") if isinstance(entry, dict) else f"record {number}"
        errors += [f"{name}: {error}" for error in _entry_errors(entry, _TYPES)]
        if not isinstance(entry, dict):
            continue
        if entry.get("verdict") not in (None, *Verdict):
            errors.append(f"{name}: verdict {entry.get('verdict')!r}")
        if entry.get("proof") not in (None, *ProofVerdict):
            errors.append(f"{name}: proof {entry.get('proof')!r}")
        if (entry.get("repair") is None) == (entry.get("verdict") == Verdict.HOLDS_AFTER_REPAIR):
            errors.append(f"{name}: a repair belongs to holds_after_repair")
        checks = entry.get("checks")
        for check in checks if isinstance(checks, list) else ():
            errors += [f"{name}: check: {error}" for error in _entry_errors(check, _CHECK_TYPES)]
            if isinstance(check, dict) and check.get("target") not in tuple(Target):
                errors.append(f"{name}: target {check.get('target')!r}")
    ids = [entry.get("id") for entry in records if isinstance(entry, dict)]
    if ids[: len(IDS)] != list(IDS):
        errors.append("the records do not start with all the claims' ids in order")
    return errors


def _entry_errors(entry: Any, types: Mapping[str, tuple[type, ...]]) -> list[str]:
    if not isinstance(entry, dict):
        return [f"an object is wanted, got {type(entry).__name__}"]
    errors = [f"keys {sorted(set(entry) ^ set(types))} missing or unknown"] if set(entry) != set(types) else []
    return errors + [
        f"{key} is {type(entry[key]).__name__}"
        for key in types
        if key in entry and not isinstance(entry[key], types[key])
    ]


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


def answer(records: Sequence[Mapping[str, Any]]) -> str:
    """One sentence for the index of the reports."""
    number = counts(records)
    parts = [f"{count} {_SAID[name][count > 1]}" for name, count in number.items() if count]
    return f"Of {sum(number.values())} claims of the paper " + ", ".join(parts) + "."


def write(records: Sequence[Mapping[str, Any]], reports: Path) -> Path:
    """Writes ``theory/ledger.json`` and ``theory/summary.json`` under ``reports``; returns the ledger's path."""
    text = json.dumps(list(records), ensure_ascii=False, indent=1) + "\n"
    path = write_text(reports / "theory" / "ledger.json", text)
    write_summary(reports, "theory", title=TITLE, answer=answer(records), command=COMMAND, counts=counts(records))
    return path
