"""What findings say of a claim: the verdict is derived from them and nothing else. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from theory.ledger import search
from theory.ledger.claim import (
    Check,
    Claim,
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
from theory.ledger.constants import PLACE, needed, written


@dataclass(frozen=True)
class Finding:
    """What one piece of evidence came to in this run.

    ``exhaustive`` marks a search through all cases there are, which is a proof too; ``powers`` say which false twins
    a search refuted.
    """

    kind: type
    target: Target
    confirmed: bool
    text: str
    detail: str
    seconds: float = 0.0
    exhaustive: bool = False
    powers: tuple[search.Power, ...] = ()


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


def conclude(claim: Claim, examined: Examined) -> Judgement:
    """The judgement that the findings give, and where it differs from what the claim expects. A pure function."""
    failures = [f"{_name(f)}: {f.detail}" for f in examined.findings if not f.confirmed]
    verdict = verdict_from(examined.findings)
    if verdict != claim.expected:
        failures.append(f"the evidence backs {verdict or 'no verdict'}, expected {claim.expected}")
    if (claim.repair is None) == (claim.expected is Verdict.HOLDS_AFTER_REPAIR):
        failures.append("a repaired statement belongs to holds_after_repair, and only there")
    failures += _unprinted(claim) + _unrefuted(claim, examined.findings)
    lines: tuple[tuple[Line, str, str], ...] = ()
    proof = None
    if claim.printed_proof is not None:
        lines, proof, more = _conclude_proof(claim.printed_proof, examined.lines)
        failures += more
    reading = None
    if claim.reading is not None and examined.reading is not None:
        reading = conclude(read(claim, claim.reading), examined.reading)
        failures += [f"reading: {failure}" for failure in reading.failures]
    found = written(claim)
    return Judgement(found, verdict, proof, examined.findings, lines, reading, tuple(failures), examined.seconds)


def _unrefuted(claim: Claim, findings: Sequence[Finding]) -> list[str]:
    """Constants whose false value no search refuted."""
    powers = {power.constant for finding in findings for power in finding.powers}
    return [f"no search has the power to refute {one.false} for «{name}»" for name, one in claim.constants.items()
            if name not in powers]  # fmt: skip


def _unprinted(claim: Claim) -> list[str]:
    """Constants and formulas that the statement judged does not take from here; 0 and 1 need not be spelled."""
    printed = set(PLACE.findall(claim.statement if claim.repair is None else claim.repair))
    through = needed(claim, printed)
    silent = [name for name, one in claim.constants.items() if name not in through and one.claimed not in (0, 1)]
    return [f"«{name}» is not in the statement" for name in (*silent, *sorted(set(claim.formulas) - printed))]


def read(claim: Claim, reading: Reading) -> Claim:
    """A claim's reading as a claim of its own."""
    return Claim(
        id=f"{claim.id} (reading)",
        place=claim.place,
        statement=reading.statement,
        expected=reading.expected,
        evidence=reading.evidence,
        answer="",
        constants=claim.constants,
        formulas=claim.formulas,
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
STATUSES = {"kindest": "false", "gap": "unjustified", "literal": "slip", "check": "sound"}


def line_status(found: Mapping[str, Finding]) -> str:
    """Status of a printed line: ``false | unjustified | slip | sound``, or ``open`` where nothing is confirmed."""
    confirmed = (status for role, status in STATUSES.items() if role in found and found[role].confirmed)
    return next(confirmed, "open")
