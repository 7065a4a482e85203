"""Mechanical mutants of a claim: each breaks one thing that the run must notice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from theory.ledger.claim import (
    Claim,
    Evidence,
    Line,
    Missing,
    Proof,
    Search,
    Step,
    Target,
    Undefined,
    Units,
    Verdict,
    Witness,
)
from theory.ledger.constants import latex, values_of
from theory.ledger.exact import same
from theory.ledger.judge import examine, examine_claim, examine_line
from theory.ledger.verdict import Examined, Finding, read

Mutant = tuple[str, Claim, Examined]

#: A side that no bound excludes, for each relation: (left, right).
HARMLESS = {"<=": (-(10**60), 10**60), "<": (-(10**60), 10**60), ">=": (10**60, -(10**60)), ">": (10**60, -(10**60))}


def evidence_mutants(evidence: Evidence, finding: Finding | None = None) -> Iterator[tuple[str, Evidence]]:
    """The evidence with one thing wrong; ``finding`` is what it came to itself."""
    match evidence:
        case Witness():
            lhs, rhs = evidence.recorded
            yield "recorded left side", replace(evidence, recorded=(another(lhs), rhs))
            yield "recorded right side", replace(evidence, recorded=(lhs, another(rhs)))
            if not same(lhs, rhs):
                yield "sides interchanged", replace(evidence, sides=lambda at: evidence.sides(at)[::-1])
            yield "harmless instance", replace(evidence, instance=evidence.harmless)
            yield (
                "harmless instance, recorded as it is",
                replace(evidence, instance=evidence.harmless, recorded=evidence.sides(evidence.harmless)),
            )
        case Search():
            enough = max([power.instance for power in finding.powers] if finding else [], default=20)
            yield from side_mutants(replace(evidence, num_examples=enough))
            if evidence.twin is not None:
                dropped = {"strategy": evidence.twin.strategy, "cases": evidence.twin.cases}
                yield "hypothesis dropped", replace(evidence, **dropped)
                own = replace(evidence.twin, strategy=evidence.strategy, cases=evidence.cases)
                yield "statement as its own twin", replace(evidence, num_examples=20, twin=own)
        case Units():
            yield "mended right side", replace(evidence, rhs=evidence.mended)
            yield "recorded exponents", replace(evidence, recorded=(evidence.recorded[0], {"nonsense": 1}))
        case Undefined():
            first = next(iter(evidence.readings))
            one = {name: evidence.readings[first] for name in evidence.readings}
            recorded = {name: evidence.recorded[first] for name in evidence.recorded}
            yield "all readings the same", replace(evidence, readings=one, recorded=recorded)
            yield "recorded reading", replace(evidence, recorded={**evidence.recorded, first: "nonsense"})
        case Missing():
            yield "true world twice", replace(evidence, false_world=evidence.true_world)
            yield "false world twice", replace(evidence, true_world=evidence.false_world)
            yield "nothing is printed", replace(evidence, printed=lambda world: {}, impossible={})
            yield "everything agrees", replace(evidence, printed=lambda world: dict.fromkeys(evidence.impossible, True))
            for name in evidence.impossible:
                yield f"all agree on '{name}'", replace(evidence, printed=_blind(evidence, name))
        case Proof():
            yield "no step by machine", replace(evidence, steps=tuple(Step(step.text) for step in evidence.steps))
            for where, step in enumerate(evidence.steps):
                if step.check is not None:
                    for name, check in (("true", lambda **given: True), ("false", lambda **given: False)):
                        changed = replace(step, check=check)
                        yield f"step {where} always {name}", Proof("", (changed,), Target.KINDEST)
                    yield (
                        f"step {where} always true, nothing false",
                        Proof("", (Step("", lambda: True),), Target.KINDEST),
                    )


def side_mutants(search: Search) -> Iterator[tuple[str, Search]]:
    """The search with a side, or both, that the statement cannot fail at."""

    def with_sides(make: Any) -> Search:
        def sides(instance: Any, **given: Any) -> Any:
            return make(*search.sides(instance, **{k: v for k, v in given.items() if k in names}))

        names = search.sides.__code__.co_varnames if hasattr(search.sides, "__code__") else ()
        return replace(search, sides=sides)

    if search.relation == "==":
        yield "left side twice", with_sides(lambda lhs, rhs: (lhs, lhs))
        yield "right side twice", with_sides(lambda lhs, rhs: (rhs, rhs))
    else:
        low, high = HARMLESS[search.relation]
        yield "left side harmless", with_sides(lambda lhs, rhs: (low, rhs))
        yield "right side harmless", with_sides(lambda lhs, rhs: (lhs, high))
        yield "constant sides", with_sides(lambda lhs, rhs: (low, high))


def _blind(missing: Missing, name: str) -> Any:
    return lambda world: {**missing.printed(world), name: True}


def with_constant(claim: Claim, name: str, **values: Any) -> Claim:
    """The claim with another claimed or false value of a constant."""
    return replace(claim, constants={**claim.constants, name: replace(claim.constants[name], **values)})


def typed(claim: Claim) -> Iterator[tuple[str, Claim]]:
    """The claim with a constant or a formula typed into its statement."""
    for name, value in values_of(claim).items():
        if name in claim.constants and claim.constants[name].claimed in (0, 1):
            continue  # these need not be spelled
        for field in ("statement", "repair"):
            text = getattr(claim, field) or ""
            if f"«{name}»" in text:
                yield f"«{name}» typed", replace(claim, **{field: text.replace(f"«{name}»", latex(value))})


def frozen(proof: Proof, name: str, value: Any) -> Proof:
    """The proof with steps that see one value of a constant only."""
    return replace(proof, steps=tuple(_blinded(step, name, value) for step in proof.steps))


def _blinded(step: Step, name: str, value: Any) -> Step:
    """The step with a constant that stays as claimed, whatever it is given."""
    check = step.check
    if check is None:
        return step
    names = check.__code__.co_varnames
    return replace(
        step,
        check=lambda **given: check(
            **{k: v for k, v in ({**given, name: value}).items() if k in names or check.__code__.co_flags & 0x08}
        ),
    )


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
    for where, (name, evidence, finding) in _each(claim, examined.findings):
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


def _each(claim: Claim, findings: Sequence[Finding]) -> Iterator[tuple[int, tuple[str, Evidence, Finding]]]:
    for where, (piece, found) in enumerate(zip(claim.evidence, findings, strict=True)):
        for name, mutant in evidence_mutants(piece, found):
            yield where, (name, mutant, examine(mutant, claim))


def _line_mutants(line: Line) -> Iterator[tuple[str, Line]]:
    for role in ("literal", "kindest", "gap"):
        witness = getattr(line, role)
        if witness is not None:
            for name, mutant in evidence_mutants(witness):
                yield f"{role}: {name}", replace(line, **{role: mutant})


def witnesses(claim: Claim) -> list[Witness]:
    """The claim's own, its printed proof's and its reading's."""
    lines = claim.printed_proof.lines if claim.printed_proof else ()
    evidence = [*claim.evidence, *(claim.reading.evidence if claim.reading else ())]
    evidence += [witness for line in lines for witness in (line.literal, line.kindest, line.gap)]
    return [witness for witness in evidence if isinstance(witness, Witness)]
