"""What a claim is, how it is judged, and how the records become a table, a file and a page.

The words of a claim's module are here: ``ledger.Claim``, ``ledger.Witness`` and so on.
"""

from theory.ledger.claim import (
    Check,
    Claim,
    Constant,
    Instance,
    Line,
    Missing,
    PrintedProof,
    Proof,
    ProofVerdict,
    Reading,
    Search,
    Sides,
    Step,
    Target,
    Twin,
    Undefined,
    Units,
    Verdict,
    Witness,
)

__all__ = [
    "Check",
    "Claim",
    "Constant",
    "Instance",
    "Line",
    "Missing",
    "PrintedProof",
    "Proof",
    "ProofVerdict",
    "Reading",
    "Search",
    "Sides",
    "Step",
    "Target",
    "Twin",
    "Undefined",
    "Units",
    "Verdict",
    "Witness",
]
