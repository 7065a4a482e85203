"""The schema of ``ledger.json``: a list of records, one for each claim, in the order of ``ids.py``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from theory.ledger.claim import ProofVerdict, Target, Verdict
from theory.ledger.ids import IDS

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
    "powers": (list,),
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
