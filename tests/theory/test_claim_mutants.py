"""Each mutant of each claim must fail the run; without its witness or search a claim has no verdict."""

from __future__ import annotations

import itertools

import pytest

from tests.theory.conftest import examined
from tests.theory.mutants import broken, flipped
from theory.ledger.claim import Claim, Missing, Proof, Search, Target, Undefined, Units, Verdict, Witness
from theory.ledger.exact import related
from theory.ledger.ids import IDS
from theory.ledger.judge import Finding, conclude, verdict_from

#: What each verdict cannot do without: (kinds, target).
NEEDS: dict[Verdict, tuple[tuple[tuple[type, ...], Target], ...]] = {
    Verdict.HOLDS: (((Search,), Target.PRINTED),),
    Verdict.HOLDS_AFTER_REPAIR: (((Witness,), Target.PRINTED), ((Search,), Target.REPAIRED)),
    Verdict.REFUTED: (((Witness,), Target.PRINTED), ((Witness,), Target.KINDEST)),
    Verdict.ILL_POSED: (((Units, Undefined), Target.PRINTED),),
    Verdict.NOT_DECIDABLE: (((Missing,), Target.PRINTED),),
}


def test_a_claim_passes_as_it_is(claim: Claim) -> None:
    assert conclude(claim, examined(claim)).failures == ()


def test_every_flipped_expectation_fails(claim: Claim) -> None:
    survivors = [
        name for name, mutant, found in flipped(claim, examined(claim)) if not conclude(mutant, found).failures
    ]
    assert survivors == []


def test_every_broken_piece_of_evidence_fails(claim: Claim) -> None:
    names, survivors = [], []
    for name, mutant, found in broken(claim, examined(claim)):
        names.append(name)
        if not conclude(mutant, found).failures:
            survivors.append(name)
    assert survivors == []
    assert names, "nothing to break: this claim has no witness, search, units, undefined symbol or missing thing"


def test_no_verdict_without_its_evidence(claim: Claim) -> None:
    found = examined(claim)
    findings, verdict = found.findings, verdict_from(found.findings)
    assert verdict is not None
    for kinds, target in NEEDS[verdict]:
        rest = [f for f in findings if not (f.kind in kinds and f.target == target)]
        assert len(rest) < len(findings)
        assert verdict_from(rest) is None, f"{verdict} stays without its {kinds[0].__name__} ({target})"
    assert verdict_from([]) is None


def test_no_verdict_without_all_witnesses_or_all_searches(claim: Claim) -> None:
    findings = examined(claim).findings
    for kind in (Witness, Search):
        rest = [finding for finding in findings if finding.kind is not kind]
        if len(rest) < len(findings) and claim.expected is not Verdict.ILL_POSED:
            assert verdict_from(rest) is None


def test_a_proof_is_needed(claim: Claim) -> None:
    findings = examined(claim).findings
    if claim.expected in (Verdict.HOLDS, Verdict.HOLDS_AFTER_REPAIR):
        rest = [f for f in findings if f.kind is not Proof and not f.exhaustive]
        assert verdict_from(rest) is None


def witnesses(claim: Claim) -> list[Witness]:
    """The claim's own, its printed proof's and its reading's."""
    lines = claim.printed_proof.lines if claim.printed_proof else ()
    evidence = [*claim.evidence, *(claim.reading.evidence if claim.reading else ())]
    evidence += [witness for line in lines for witness in (line.literal, line.kindest, line.gap)]
    return [witness for witness in evidence if isinstance(witness, Witness)]


def test_the_harmless_instance_is_one(claim: Claim) -> None:
    """The mutant that puts it in has power only if the claim is true there and its hypotheses are met."""
    for witness in witnesses(claim):
        met = witness.hypotheses(witness.harmless)
        assert all(bool(holds) for holds in met.values()), f"{witness.text[:60]}: {met}"
        lhs, rhs = witness.sides(witness.harmless)
        assert related(lhs, witness.relation, rhs), f"{witness.text[:60]}: {lhs} {witness.relation} {rhs}"


def test_all_ids_are_judged(request: pytest.FixtureRequest) -> None:
    from tests.theory.conftest import CLAIMS

    assert [id for id in IDS if id not in CLAIMS] == []


def test_the_rules_of_verdicts_are_exclusive() -> None:
    """Every combination of findings gives a verdict or none, and unconfirmed findings count for nothing."""
    kinds = [
        (Witness, Target.PRINTED),
        (Witness, Target.KINDEST),
        (Proof, Target.PRINTED),
        (Proof, Target.REPAIRED),
        (Search, Target.PRINTED),
        (Search, Target.REPAIRED),
        (Units, Target.PRINTED),
        (Missing, Target.PRINTED),
    ]
    seen = set()
    for chosen in itertools.product((False, True), repeat=len(kinds)):
        found = [Finding(k, t, yes, "", "") for (k, t), yes in zip(kinds, chosen, strict=True)]
        present = [finding for finding in found if finding.confirmed]
        verdict = verdict_from(found)
        assert verdict == verdict_from(present) == verdict_from(present[::-1])
        if verdict is Verdict.HOLDS:
            assert not {(Witness, Target.PRINTED), (Witness, Target.KINDEST)} & {(f.kind, f.target) for f in present}
        seen.add(verdict)
    assert seen == {*Verdict, None}
