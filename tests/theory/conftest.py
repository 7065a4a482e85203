"""Every claim, examined once for all tests here; the Monte Carlo checks, which decide no verdict, are left out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from theory.ledger import library
from theory.ledger.claim import Check, Claim
from theory.ledger.judge import EXAMINED as judged
from theory.ledger.judge import examine_claim
from theory.ledger.verdict import Examined

CLAIMS = {
    claim.id: replace(claim, evidence=tuple(e for e in claim.evidence if not isinstance(e, Check)))
    for claim in library.load_claims()
}
_EXAMINED: dict[str, Examined] = {}


def examined(claim: Claim) -> Examined:
    """What the claim's own evidence came to; run on the first call only, and not where ``theory/`` has run here."""
    if claim.id in judged:
        whole = judged[claim.id]
        return replace(whole, findings=tuple(finding for finding in whole.findings if finding.kind is not Check))
    if claim.id not in _EXAMINED:
        _EXAMINED[claim.id] = examine_claim(claim)
    return _EXAMINED[claim.id]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs a test with a parameter ``claim`` for every claim."""
    if "claim" in metafunc.fixturenames:
        metafunc.parametrize("claim", list(CLAIMS.values()), ids=list(CLAIMS))
