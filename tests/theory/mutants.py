"""Mechanical mutants of a claim: each breaks one thing that the run must notice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from theory.ledger.claim import Claim, Evidence, Line, Missing, Search, Undefined, Units, Verdict, Witness
from theory.ledger.judge import Examined, Finding, examine, examine_claim, examine_line, read

Mutant = tuple[str, Claim, Examined]


def evidence_mutants(evidence: Evidence) -> Iterator[tuple[str, Evidence]]:
    """The evidence with one thing wrong."""
    match evidence:
        case Witness():
            lhs, rhs = evidence.recorded
            yield "recorded left side", replace(evidence, recorded=(another(lhs), rhs))
            yield "recorded right side", replace(evidence, recorded=(lhs, another(rhs)))
            yield "harmless instance", replace(evidence, instance=evidence.harmless)
            yield (
                "harmless instance, recorded as it is",
                replace(evidence, instance=evidence.harmless, recorded=evidence.sides(evidence.harmless)),
            )
        case Search():
            twin = evidence.twin
            own = twin.strategy is not None or twin.cases is not None
            yield (
                "false twin as the statement",
                replace(
                    evidence,
                    sides=twin.sides or evidence.sides,
                    relation=twin.relation or evidence.relation,
                    strategy=twin.strategy if own else evidence.strategy,
                    cases=twin.cases if own else evidence.cases,
                ),
            )
            yield (
                "statement as its own twin",
                replace(evidence, num_examples=20, twin=replace(twin, **_statement(evidence))),
            )
        case Units():
            yield "mended right side", replace(evidence, rhs=evidence.mended)
            yield "recorded exponents", replace(evidence, recorded=(evidence.recorded[0], {"nonsense": 1}))
        case Undefined():
            first = next(iter(evidence.readings))
            same = {name: evidence.readings[first] for name in evidence.readings}
            recorded = {name: evidence.recorded[first] for name in evidence.recorded}
            yield "all readings the same", replace(evidence, readings=same, recorded=recorded)
            yield "recorded reading", replace(evidence, recorded={**evidence.recorded, first: "nonsense"})
        case Missing():
            yield "true world twice", replace(evidence, false_world=evidence.true_world)
            yield "false world twice", replace(evidence, true_world=evidence.false_world)


def _statement(search: Search) -> dict[str, Any]:
    return {
        "sides": search.sides,
        "relation": search.relation,
        "strategy": search.strategy,
        "cases": search.cases,
    }


def another(value: Any) -> Any:
    """A value that differs from an exact one."""
    if isinstance(value, bool):
        return not value
    return value + 1


def flipped(claim: Claim, examined: Examined) -> Iterator[Mutant]:
    """The claim with every other verdict expected, of the statement, of its proof and of its reading."""
    for verdict in Verdict:
        if verdict != claim.expected:
            yield f"expected {verdict}", replace(claim, expected=verdict), examined
    if claim.printed_proof is not None:
        for proof in type(claim.printed_proof.expected):
            if proof != claim.printed_proof.expected:
                changed = replace(claim, printed_proof=replace(claim.printed_proof, expected=proof))
                yield f"proof expected {proof}", changed, examined
    if claim.reading is not None:
        for verdict in Verdict:
            if verdict != claim.reading.expected:
                yield (
                    f"reading expected {verdict}",
                    replace(claim, reading=replace(claim.reading, expected=verdict)),
                    examined,
                )


def broken(claim: Claim, examined: Examined) -> Iterator[Mutant]:
    """The claim with one piece of evidence broken: its own, a printed line's, or its reading's."""
    for where, (name, evidence, finding) in _each(claim.evidence):
        findings = (*examined.findings[:where], finding, *examined.findings[where + 1 :])
        changed = (*claim.evidence[:where], evidence, *claim.evidence[where + 1 :])
        yield f"evidence {where}: {name}", replace(claim, evidence=changed), replace(examined, findings=findings)
    if claim.printed_proof is not None:
        lines = claim.printed_proof.lines
        for where, line in enumerate(lines):
            for name, changed_line in _line_mutants(line):
                found = (*examined.lines[:where], examine_line(changed_line), *examined.lines[where + 1 :])
                proof = replace(claim.printed_proof, lines=(*lines[:where], changed_line, *lines[where + 1 :]))
                yield f"line {where}: {name}", replace(claim, printed_proof=proof), replace(examined, lines=found)
    if claim.reading is not None:
        inner = read(claim, claim.reading)
        for name, mutant, found_inner in broken(inner, examined.reading or examine_claim(inner)):
            changed_reading = replace(claim.reading, evidence=mutant.evidence)
            yield f"reading: {name}", replace(claim, reading=changed_reading), replace(examined, reading=found_inner)


def _each(evidence: tuple[Evidence, ...]) -> Iterator[tuple[int, tuple[str, Evidence, Finding]]]:
    for where, piece in enumerate(evidence):
        for name, mutant in evidence_mutants(piece):
            yield where, (name, mutant, examine(mutant))


def _line_mutants(line: Line) -> Iterator[tuple[str, Line]]:
    for role in ("literal", "kindest", "gap"):
        witness = getattr(line, role)
        if witness is not None:
            for name, mutant in evidence_mutants(witness):
                yield f"{role}: {name}", replace(line, **{role: mutant})
