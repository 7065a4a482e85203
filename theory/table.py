"""The verdicts as text: ``python -m theory.table`` writes ``theory/LEDGER.md``.

It shows what the modules expect; ``pytest theory/`` fails where a run finds something else, and a test holds it to the
modules.
"""

from __future__ import annotations

import os
from pathlib import Path

from theory.ledger import book, library
from theory.ledger.claim import Claim, Evidence, Missing, Proof, Search, Undefined, Units, Witness
from theory.ledger.constants import plain, values_of, written
from theory.ledger.judge import show
from theory.ledger.search import constants_of

ROOT = library.HERE.parent
LEDGER = library.HERE / "LEDGER.md"
COMMAND = "python -m theory.table"
_RELATIONS = {"<=": "≤", ">=": "≥", "==": "=", "!=": "≠"}


def ledger() -> str:
    """The page ``theory/LEDGER.md``: a group for each section, a line for each claim, linked to its module."""
    claims = [written(claim) for claim in library.load_claims()]
    lines = [
        "# The claims of the paper, judged",
        "",
        f"Written by `{COMMAND}` from the modules of `claims/`; `pytest theory/` runs the evidence and writes a page "
        "with all of it. A false twin is the statement with another number or a hypothesis less: the search refutes "
        "it, so the number is right within the factor.",
        "",
        book.answer([{"id": claim.id, "verdict": claim.expected} for claim in claims]),
        "",
    ]
    for section in dict.fromkeys(book.section_of(claim.id) for claim in claims):
        lines += [f"**{section}**", "", "| claim | verdict | what was found | evidence |", f"|{' --- |' * 4}"]
        for claim in claims:
            if book.section_of(claim.id) == section:
                module = Path(os.path.relpath(ROOT / library.module_of(claim.id), LEDGER.parent)).as_posix()
                verdict = claim.expected.replace("_", " ")
                row = (f"[{claim.id}]({module})", verdict, claim.answer, evidence(claim))
                lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |")
        lines.append("")
    return "\n".join(lines)


def evidence(claim: Claim) -> str:
    """What backs a verdict, in one sentence."""
    parts = [part for piece in claim.evidence for part in [_spoken(piece, claim)] if part]
    cited = sorted({id for piece in claim.evidence if isinstance(piece, Proof) for s in piece.steps for id in s.cites})
    sentence = "; ".join(dict.fromkeys(parts)) + (f"; rests on {', '.join(cited)}" if cited else "")
    return f"{sentence[:1].upper()}{sentence[1:]}."


def _spoken(piece: Evidence, claim: Claim) -> str:
    match piece:
        case Witness():
            lhs, rhs = (show(value) for value in piece.recorded)
            return f"witness, {lhs} {_RELATIONS.get(piece.relation, piece.relation)} {rhs} fails"
        case Proof():
            return (
                f"proof, {sum(step.check is not None for step in piece.steps)} of {len(piece.steps)} steps by machine"
            )
        case Search():
            twins = [_twin(name, claim) for name in sorted(constants_of(piece, claim))]
            twins += [f"the statement without {piece.twin.text}"] if piece.twin else []
            return f"{'all cases' if piece.exhaustive else 'search'}, refuting {', '.join(twins)}"
        case Units():
            return "sides of different units"
        case Undefined():
            return f"{piece.symbol} is undefined"
        case Missing():
            return f"two worlds agree with all that is printed; missing: {piece.what}"
    return ""


def _twin(name: str, claim: Claim) -> str:
    one = claim.constants[name]
    factor = f" (factor {float(one.factor):.3g})" if one.factor else ""
    return f"{plain(one.false)} for {plain(values_of(claim)[name])}{factor}"


def main() -> None:
    """Writes the ledger."""
    LEDGER.write_text(ledger(), encoding="utf-8")
    print(f"written: {LEDGER.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
