"""Each mutant of each claim must fail the run; without its witness or search a claim has no verdict."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import Any

import pytest
import sympy

from tests.theory.conftest import examined
from tests.theory.mutants import broken, flipped, frozen, typed, with_constant, witnesses
from theory.ledger import judge
from theory.ledger.claim import Claim, Missing, Proof, Search, Step, Target, Undefined, Units, Verdict, Witness
from theory.ledger.constants import values_of, written
from theory.ledger.exact import related
from theory.ledger.ids import IDS
from theory.ledger.judge import examine, shortened
from theory.ledger.steps import identity
from theory.ledger.verdict import Finding, conclude, verdict_from

X, Y = sympy.symbols("x y")

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


def of_kind(claim: Claim, kind: type) -> list[Any]:
    """The claim's evidence of one kind."""
    return [evidence for evidence in claim.evidence if isinstance(evidence, kind)]


def test_every_false_constant_is_refuted(claim: Claim) -> None:
    """The statement with the false value falls, and with the claimed value in its place the search has no power."""
    for name, one in claim.constants.items():
        false = with_constant(claim, name, claimed=one.false)
        for seen in (claim, shortened(claim)):  # by itself, and where another rests on it
            assert not all(examine(search, false).confirmed for search in of_kind(seen, Search)), name
        same = with_constant(claim, name, false=one.claimed)
        searches = of_kind(claim, Search) + of_kind(shortened(claim), Search)
        found = [examine(replace(search, num_examples=20), same) for search in searches]
        assert name not in {power.constant for finding in found for power in finding.powers}
        findings = tuple(replace(finding, powers=()) for finding in examined(claim).findings)
        assert conclude(claim, replace(examined(claim), findings=findings)).failures


def test_every_proof_needs_the_constants(claim: Claim) -> None:
    for proof in of_kind(claim, Proof):
        for name, one in claim.constants.items() if proof.target is not Target.KINDEST else ():
            assert not examine(frozen(proof, name, one.claimed), claim).confirmed, name


def test_every_constant_is_printed_from_the_code(claim: Claim) -> None:
    assert [name for name, mutant in typed(claim) if not conclude(mutant, examined(claim)).failures] == []
    for name, one in claim.constants.items():
        texts = [(c.statement, c.repair) for c in (written(claim), written(claim, values_of(claim, name)))]
        assert texts[0] != texts[1] or one.claimed in (0, 1), name


def test_a_claim_falls_with_what_it_rests_on(claim: Claim, monkeypatch: pytest.MonkeyPatch) -> None:
    for proof in of_kind(claim, Proof):
        for id in {id for step in proof.steps for id in step.cites}:
            cites = [Step("", cites=step.cites) for step in proof.steps]
            citing = Proof("", (identity("", X, Y, {X: Y}), *cites), Target.KINDEST)
            assert examine(citing, claim).confirmed, id
            with monkeypatch.context() as patch:
                patch.setitem(judge._FAILURES, id, ("broken here",))
                assert not examine(citing, claim).confirmed, id


def test_what_a_proof_names_it_cites(claim: Claim) -> None:
    """Claims named in the text of a proof are those that its steps cite."""
    for evidence in claim.evidence:
        if isinstance(evidence, Proof):
            text = " ".join([evidence.text, *(step.text for step in evidence.steps)])
            named = {id for id in IDS if re.search(rf"(?<![\w-]){re.escape(id)}(?![\w-])", text)} - {claim.id}
            cited = {id for step in evidence.steps for id in step.cites}
            assert named <= cited, f"named but not cited: {sorted(named - cited)}"


def test_every_factor_is_stated(claim: Claim) -> None:
    """Each inequality's constant has a false value within a factor of five of the best."""
    for finding in examined(claim).findings:
        for power in finding.powers:
            assert power.factor is None or 1 < power.factor <= 5, power


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
