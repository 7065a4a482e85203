"""Runs a claim's evidence and derives the verdict from what was found: nothing else enters."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from theory.ledger import search
from theory.ledger.claim import (
    Check,
    Claim,
    Evidence,
    Line,
    Missing,
    PrintedProof,
    Proof,
    ProofVerdict,
    Reading,
    Search,
    Target,
    Undefined,
    Units,
    Verdict,
    Witness,
)
from theory.ledger.exact import related, same
from theory.ledger.units import MixedUnits, units_of


@dataclass(frozen=True)
class Finding:
    """What one piece of evidence came to in this run.

    ``exhaustive`` marks a search through all cases there are, which is a proof too.
    """

    kind: type
    target: Target
    confirmed: bool
    text: str
    detail: str
    seconds: float = 0.0
    exhaustive: bool = False


@dataclass(frozen=True)
class Judgement:
    """A claim with what this run found; ``failures`` is empty where the run agrees with the claim."""

    claim: Claim
    verdict: Verdict | None
    proof: ProofVerdict | None
    findings: tuple[Finding, ...]
    lines: tuple[tuple[Line, str, str], ...]
    reading: Judgement | None
    failures: tuple[str, ...]
    seconds: float = field(default=0.0, compare=False)


def verdict_from(findings: Sequence[Finding]) -> Verdict | None:
    """The verdict that the confirmed findings back, None where they back none. A pure function."""
    found = {(finding.kind, finding.target) for finding in findings if finding.confirmed}
    found |= {(Proof, finding.target) for finding in findings if finding.confirmed and finding.exhaustive}
    witnessed = (Witness, Target.PRINTED) in found
    beaten = (Witness, Target.KINDEST) in found
    proved = {target for target in Target if (Proof, target) in found and (Search, target) in found}
    undefined = any(kind in (Units, Undefined) for kind, _ in found)
    if witnessed and (Proof, Target.PRINTED) in found:
        return None  # a proof of what an instance contradicts
    if (Missing, Target.PRINTED) in found:
        return Verdict.NOT_DECIDABLE if not (witnessed or beaten or proved or undefined) else None
    if Target.PRINTED in proved:
        return Verdict.HOLDS if not (witnessed or beaten or undefined) else None
    if witnessed and Target.REPAIRED in proved:
        return Verdict.HOLDS_AFTER_REPAIR if not beaten else None
    if witnessed and beaten:
        return Verdict.REFUTED
    others = {kind for kind, _ in found} - {Units, Undefined, Check}
    return Verdict.ILL_POSED if undefined and not others else None


def proof_verdict_from(statuses: Sequence[str]) -> ProofVerdict | None:
    """The verdict on a printed proof from its lines' statuses, None where a line has none. A pure function."""
    if not statuses or "open" in statuses:
        return None
    if "false" in statuses:
        return ProofVerdict.WRONG
    return ProofVerdict.GAP if "unjustified" in statuses else ProofVerdict.SOUND


@dataclass(frozen=True)
class Examined:
    """What a run found for a claim: for its evidence, for each line of the printed proof (by role), for its reading."""

    findings: tuple[Finding, ...]
    lines: tuple[Mapping[str, Finding], ...] = ()
    reading: Examined | None = None
    seconds: float = 0.0


def judge(claim: Claim) -> Judgement:
    """Runs all of the claim's evidence in this process and compares what it backs with what is expected."""
    return conclude(claim, examine_claim(claim))


def examine_claim(claim: Claim) -> Examined:
    """Runs the claim's evidence, its printed proof's lines and its reading."""
    start = time.perf_counter()
    findings = tuple(examine(evidence) for evidence in claim.evidence)
    lines = tuple(examine_line(line) for line in claim.printed_proof.lines) if claim.printed_proof else ()
    reading = examine_claim(read(claim, claim.reading)) if claim.reading else None
    return Examined(findings, lines, reading, round(time.perf_counter() - start, 3))


def conclude(claim: Claim, examined: Examined) -> Judgement:
    """The judgement that the findings give, and where it differs from what the claim expects. A pure function."""
    failures = [f"{_name(f)}: {f.detail}" for f in examined.findings if not f.confirmed]
    verdict = verdict_from(examined.findings)
    if verdict != claim.expected:
        failures.append(f"the evidence backs {verdict or 'no verdict'}, expected {claim.expected}")
    if (claim.repair is None) == (claim.expected is Verdict.HOLDS_AFTER_REPAIR):
        failures.append("a repaired statement belongs to holds_after_repair, and only there")
    lines: tuple[tuple[Line, str, str], ...] = ()
    proof = None
    if claim.printed_proof is not None:
        lines, proof, more = _conclude_proof(claim.printed_proof, examined.lines)
        failures += more
    reading = None
    if claim.reading is not None and examined.reading is not None:
        reading = conclude(read(claim, claim.reading), examined.reading)
        failures += [f"reading: {failure}" for failure in reading.failures]
    return Judgement(claim, verdict, proof, examined.findings, lines, reading, tuple(failures), examined.seconds)


def read(claim: Claim, reading: Reading) -> Claim:
    """A claim's reading as a claim of its own."""
    return Claim(
        id=f"{claim.id} (reading)",
        place=claim.place,
        statement=reading.statement,
        expected=reading.expected,
        evidence=reading.evidence,
        answer="",
        repair=reading.repair,
    )


def _name(finding: Finding) -> str:
    return f"{finding.kind.__name__.lower()} ({finding.target})"


def _conclude_proof(
    printed: PrintedProof, examined: Sequence[Mapping[str, Finding]]
) -> tuple[tuple[tuple[Line, str, str], ...], ProofVerdict | None, list[str]]:
    lines, failures = [], []
    for number, (line, found) in enumerate(zip(printed.lines, examined, strict=True), start=1):
        detail = "; ".join(finding.detail for finding in found.values())
        lines.append((line, line_status(found), detail))
        failures += [
            f"printed proof, line {number}: {role}: {finding.detail}"
            for role, finding in found.items()
            if not finding.confirmed
        ]
    proof = proof_verdict_from([status for _, status, _ in lines])
    if proof != printed.expected:
        failures.append(f"the printed proof comes out as {proof or 'not judged'}, expected {printed.expected}")
    return tuple(lines), proof, failures


#: What a confirmed role makes of a line, the strongest first.
_STATUSES = {"kindest": "false", "gap": "unjustified", "literal": "slip", "check": "sound"}


def examine_line(line: Line) -> dict[str, Finding]:
    """Runs what judges a line of a printed proof, by role."""
    found = {}
    for role in _STATUSES:
        evidence = getattr(line, role)
        if evidence is not None:
            found[role] = examine(Proof("", (evidence,)) if role == "check" else evidence)
    return found


def line_status(found: Mapping[str, Finding]) -> str:
    """Status of a printed line: ``false | unjustified | slip | sound``, or ``open`` where nothing is confirmed."""
    confirmed = (status for role, status in _STATUSES.items() if role in found and found[role].confirmed)
    return next(confirmed, "open")


def examine(evidence: Evidence) -> Finding:
    """Runs one piece of evidence. An exception inside it is a failure to confirm, with its text as the detail."""
    start = time.perf_counter()
    target = getattr(evidence, "target", Target.PRINTED)
    try:
        confirmed, detail = _RUNNERS[type(evidence)](evidence)
    except Exception as error:  # any error means: not confirmed
        confirmed, detail = False, f"{type(error).__name__}: {error}"
    exhaustive = isinstance(evidence, Search) and evidence.exhaustive
    seconds = round(time.perf_counter() - start, 3)
    return Finding(type(evidence), target, confirmed, evidence.text, detail, seconds, exhaustive)


def show(value: Any) -> str:
    """An exact value as a reader would write it."""
    if isinstance(value, (tuple, list)):
        return "(" + ", ".join(show(part) for part in value) + ")"
    return str(value)


def _witness(witness: Witness) -> tuple[bool, str]:
    broken = [name for name, holds in witness.hypotheses(witness.instance).items() if not bool(holds)]
    if broken:
        return False, "hypotheses not met by the instance: " + ", ".join(broken)
    lhs, rhs = witness.sides(witness.instance)
    for side, value, recorded in zip(("left", "right"), (lhs, rhs), witness.recorded, strict=True):
        if not same(value, recorded):
            return False, f"the {side} side is {show(value)}, recorded {show(recorded)}"
    if related(lhs, witness.relation, rhs):
        return False, f"no counterexample: {show(lhs)} {witness.relation} {show(rhs)} is true here"
    return True, f"claimed {show(lhs)} {witness.relation} {show(rhs)}, which is false"


def _search(evidence: Search) -> tuple[bool, str]:
    return search.run(evidence)


def _proof(proof: Proof) -> tuple[bool, str]:
    checked = [step for step in proof.steps if step.check is not None]
    for step in checked:
        if step.check is not None and step.check() is not True:
            return False, f"step not confirmed: {step.text}"
    if not checked:
        return False, "no step is checked by machine"
    return True, f"{len(checked)} of {len(proof.steps)} steps checked by machine"


def _units(evidence: Units) -> tuple[bool, str]:
    sides = []
    for expression in (evidence.lhs, evidence.rhs):
        try:
            sides.append(units_of(expression, evidence.units))
        except MixedUnits as mixed:
            sides.append({"mixed": 1})
            if {"mixed": 1} not in [dict(recorded) for recorded in evidence.recorded]:
                return False, str(mixed)
    for side, found, recorded in zip(("left", "right"), sides, evidence.recorded, strict=True):
        if found != dict(recorded):
            return False, f"the {side} side has the units {found}, recorded {dict(recorded)}"
    if sides[0] == sides[1]:
        return False, f"both sides have the units {sides[0] or 'none'}"
    return True, f"left side: {_spell(sides[0])}; right side: {_spell(sides[1])}"


def _spell(exponents: dict[str, Any]) -> str:
    if exponents == {"mixed": 1}:
        return "a sum of different units"
    return " · ".join(f"{name}^{power}" if power != 1 else name for name, power in exponents.items()) or "a pure number"


def _undefined(evidence: Undefined) -> tuple[bool, str]:
    values = {name: compute() for name, compute in evidence.readings.items()}
    if set(values) != set(evidence.recorded):
        return False, f"readings {sorted(values)} but recorded {sorted(evidence.recorded)}"
    for name, value in values.items():
        if show(value) != show(evidence.recorded[name]):
            return False, f"reading '{name}' gives {show(value)}, recorded {show(evidence.recorded[name])}"
    if len({show(value) for value in values.values()}) < 2:
        return False, f"every reading of {evidence.symbol} gives the same"
    return True, "; ".join(f"{name}: {show(value)}" for name, value in values.items())


def _missing(evidence: Missing) -> tuple[bool, str]:
    for name, world in (("true", evidence.true_world), ("false", evidence.false_world)):
        if evidence.consistent(world) is not True:
            return False, f"the {name} world contradicts what is printed"
    if evidence.assertion(evidence.true_world) is not True or evidence.assertion(evidence.false_world) is not False:
        return False, "the two worlds do not disagree on the claim"
    return True, f"two worlds agree with all that is printed and disagree on the claim; missing: {evidence.what}"


def _check(evidence: Check) -> tuple[bool, str]:
    return True, evidence.run()


_RUNNERS: dict[type, Callable[[Any], tuple[bool, str]]] = {
    Witness: _witness,
    Search: _search,
    Proof: _proof,
    Units: _units,
    Undefined: _undefined,
    Missing: _missing,
    Check: _check,
}
