"""Runs a claim's evidence and judges what was found."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from theory.ledger import library, search
from theory.ledger.claim import (
    Check,
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
from theory.ledger.constants import named_by, needed, values_of
from theory.ledger.exact import related, same
from theory.ledger.units import MixedUnits, units_of
from theory.ledger.verdict import STATUSES, Examined, Finding, Judgement, conclude, read

#: What judgements of this process failed at, by claim: what other claims rest on.
_FAILURES: dict[str, tuple[str, ...]] = {}

#: Claims that others rest on, and that a search over fewer instances was enough to confirm, false twins included.
_STANDING: set[str] = set()

#: What the claims judged in this process came to.
EXAMINED: dict[str, Examined] = {}


def judge(claim: Claim) -> Judgement:
    """Runs all of the claim's evidence in this process and compares what it backs with what is expected."""
    EXAMINED[claim.id] = examine_claim(claim)
    judgement = conclude(claim, EXAMINED[claim.id])
    _FAILURES[claim.id] = judgement.failures
    return judgement


def fallen(id: str) -> str:
    """Why nothing can rest on a claim; empty where it stands. Judges it on the first call."""
    claim = library.claim(id)
    if claim.expected not in (Verdict.HOLDS, Verdict.HOLDS_AFTER_REPAIR):
        return f"{id} is {claim.expected}"
    if id not in _FAILURES and id not in _STANDING:
        short = shortened(claim)
        if conclude(short, examine_claim(short)).failures:
            judge(claim)
        else:
            _STANDING.add(id)
    return f"{id} fails: {_FAILURES[id][0]}" if _FAILURES.get(id) else ""


def shortened(claim: Claim) -> Claim:
    """The claim as others rest on it: its own evidence, searches over an eighth of their random instances.

    They look on until each false constant has fallen, for one that refutes none says nothing.
    """
    evidence = tuple(
        replace(one, least=-(-one.num_examples // 8)) if isinstance(one, Search) else one for one in claim.evidence
    )
    return replace(claim, evidence=evidence, printed_proof=None, reading=None)


def examine_claim(claim: Claim) -> Examined:
    """Runs the claim's evidence, its printed proof's lines and its reading."""
    start = time.perf_counter()
    findings = tuple(examine(evidence, claim) for evidence in claim.evidence)
    lines = tuple(examine_line(line) for line in claim.printed_proof.lines) if claim.printed_proof else ()
    reading = examine_claim(read(claim, claim.reading)) if claim.reading else None
    return Examined(findings, lines, reading, round(time.perf_counter() - start, 3))


def examine_line(line: Line) -> dict[str, Finding]:
    """Runs what judges a line of a printed proof, by role."""
    found = {}
    for role in STATUSES:
        evidence = getattr(line, role)
        if evidence is not None:
            found[role] = examine(Proof("", (evidence,)) if role == "check" else evidence)
    return found


#: The claim of evidence that has no constants.
_NONE = Claim("", "", "", Verdict.HOLDS, (), "")


def examine(evidence: Evidence, claim: Claim = _NONE) -> Finding:
    """Runs one piece of a claim's evidence. An exception inside it is a failure to confirm, with its text as detail."""
    start = time.perf_counter()
    target = getattr(evidence, "target", Target.PRINTED)
    powers: tuple[search.Power, ...] = ()
    try:
        if isinstance(evidence, Search):
            confirmed, detail, powers = search.run(evidence, claim)
        elif isinstance(evidence, Proof):
            confirmed, detail = _proof(evidence, claim)
        else:
            confirmed, detail = _RUNNERS[type(evidence)](evidence)
    except Exception as error:  # any error means: not confirmed
        confirmed, detail = False, f"{type(error).__name__}: {error}"
    exhaustive = isinstance(evidence, Search) and evidence.exhaustive
    seconds = round(time.perf_counter() - start, 3)
    return Finding(type(evidence), target, confirmed, evidence.text, detail, seconds, exhaustive, powers)


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


def _proof(proof: Proof, claim: Claim) -> tuple[bool, str]:
    values = values_of(claim)
    checked = [step for step in proof.steps if step.check is not None]
    for step in checked:
        if not _confirms(step, values):
            return False, f"step not confirmed: {step.text}"
    if not checked:
        return False, "no step is checked by machine"
    for step in checked:
        wrong = step.false and not _confirms(step, {**values, **step.false})
        if not wrong and not any(_breaks(step, name, claim) for name in claim.constants):
            return False, f"step that can't fail: {step.text}"
    for name, one in claim.constants.items():
        if proof.target is not Target.KINDEST and not any(_breaks(step, name, claim) for step in checked):
            return False, f"the proof goes through with {one.false} for «{name}» as well"
    for id in (id for step in proof.steps for id in step.cites):
        if reason := fallen(id):
            return False, f"rests on {reason}"
    return True, f"{len(checked)} of {len(proof.steps)} steps checked by machine"


def _breaks(step: Step, name: str, claim: Claim) -> bool:
    """Whether the step fails with the constant's false value."""
    values = values_of(claim, name)
    if step.check is None or name not in needed(claim, set(named_by(step.check, values))):
        return False
    return not _confirms(step, values)


def _confirms(step: Step, values: Mapping[str, Any]) -> bool:
    return step.check is not None and step.check(**named_by(step.check, values)) is True


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
    said = [f"{_told(value)} with {name}" for name, value in values.items()]
    said[0] = said[0].replace(" with ", f" with {evidence.symbol} read as ", 1)
    return True, f"the statement is {', '.join(said)}"


def _told(value: Any) -> str:
    return show(value).lower() if isinstance(value, bool) else show(value)


def _missing(evidence: Missing) -> tuple[bool, str]:
    for name, world in (("true", evidence.true_world), ("false", evidence.false_world)):
        against = [printed for printed, agrees in evidence.printed(world).items() if agrees is not True]
        if against:
            return False, f"the {name} world contradicts what is printed: {', '.join(against)}"
    names = set(evidence.printed(evidence.true_world))
    if not names or names != set(evidence.impossible):
        return False, f"worlds that contradict {sorted(evidence.impossible)}, but printed is {sorted(names)}"
    for name, world in evidence.impossible.items():
        against = [printed for printed, agrees in evidence.printed(world).items() if agrees is not True]
        if against != [name]:
            return False, f"the world that contradicts '{name}' alone contradicts {against or 'nothing'}"
    if evidence.assertion(evidence.true_world) is not True or evidence.assertion(evidence.false_world) is not False:
        return False, "the two worlds do not disagree on the claim"
    return True, f"two worlds agree with all that is printed and disagree on the claim; missing: {evidence.what}"


def _check(evidence: Check) -> tuple[bool, str]:
    return True, evidence.run()


_RUNNERS: dict[type, Callable[[Any], tuple[bool, str]]] = {
    Witness: _witness,
    Units: _units,
    Undefined: _undefined,
    Missing: _missing,
    Check: _check,
}
