"""Links from claims that only an experiment can settle to our own measurement of them, where one is committed.

The experiments' side commits ``llm_bench/records/claims.jsonl``, one object a line with the keys ``claim`` (an id of
``theory/ledger/ids.py``), ``verdict`` (an experiment's), ``answer`` (a sentence) and ``command``. It is read as
data: nothing of ``llm_bench`` is imported, and no verdict of the ledger depends on it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

RECORDS = Path(__file__).parents[2] / "llm_bench" / "records" / "claims.jsonl"


def measured(id: str) -> str:
    """What our own experiment found about a claim, as text for its note; empty where nothing is committed."""
    if not RECORDS.is_file():
        return ""
    for line in RECORDS.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if record["claim"] == id:
            answer = re.sub(r"(?<!\w)-(?=\d)", "−", record["answer"])
            return f" Measured here: {answer} (*{record['verdict']}*; remade by `{record['command']}`.)"
    return ""
