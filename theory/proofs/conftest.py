"""What the tests of proofs share."""

from __future__ import annotations

import pytest

from theory.ledger.search import Survey


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest) -> Survey:
    """What the module's ``SURVEY`` has found, made once."""
    result: Survey = request.module.SURVEY()
    return result
