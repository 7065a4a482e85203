"""The verdicts as text: ``python -m theory.table`` writes the README's table and ``theory/LEDGER.md``.

Both show what the modules expect; ``pytest theory/`` fails where a run finds something else, and tests hold both to
the modules.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from theory.ledger import book, library
from theory.ledger.claim import Claim, Evidence, Missing, Proof, Search, Undefined, Units, Witness
from theory.ledger.constants import plain, values_of, written
from theory.ledger.judge import show
from theory.ledger.search import constants_of

BEGIN, END = "<!-- ledger:begin -->", "<!-- ledger:end -->"
ROOT = library.HERE.parent
README, LEDGER = ROOT / "README.md", library.HERE / "LEDGER.md"
COMMAND = "python -m theory.table"
_RELATIONS = {"<=": "≤", ">=": "≥", "==": "=", "!=": "≠"}


def markdown() -> str:
    """The README's table: a group for each section, a line for each claim, linked to the module that judges it."""
    return _table(("claim", "verdict", "what was found"), ROOT, lambda claim: (claim.answer,))


def ledger() -> str:
    """The page ``theory/LEDGER.md``: the same with a sentence of evidence for each claim."""
    head = ("claim", "verdict", "what was found", "evidence")
    table = _table(head, library.HERE, lambda claim: (claim.answer, evidence(claim)))
    return (
        "# The claims of the paper, judged\n\n"
        f"Written by `{COMMAND}` from the modules of `claims/`; `pytest theory/` runs the evidence and writes a page "
        "with all of it. A false twin is the statement with another number or a hypothesis less: the search refutes "
        f"it, so the number is right within the factor.\n\n{table}"
    )


def _table(head: Sequence[str], base: Path, cells: Callable[[Claim], Sequence[str]]) -> str:
    claims = [written(claim) for claim in library.load_claims()]
    records = [{"id": claim.id, "verdict": claim.expected} for claim in claims]
    lines = [book.answer(records), ""]
    for section in dict.fromkeys(book.section_of(claim.id) for claim in claims):
        lines += [f"**{section}**", "", f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
        for claim in claims:
            if book.section_of(claim.id) == section:
                module = Path(os.path.relpath(ROOT / library.module_of(claim.id), base)).as_posix()
                row = (f"[{claim.id}]({module})", claim.expected.replace("_", " "), *cells(claim))
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


def placed(text: str, table: str) -> str:
    """The text with the table between its two markers.

    Raises:
        ValueError: If a marker is missing.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the markers {BEGIN} and {END} must stand in the text, in this order; add them")
    return f"{before}{BEGIN}\n{table}{END}{after}"


def main() -> None:
    """Writes the README's table in place, and the ledger."""
    README.write_text(placed(README.read_text(encoding="utf-8"), markdown()), encoding="utf-8")
    LEDGER.write_text(ledger(), encoding="utf-8")
    print(f"written: {README.relative_to(ROOT)}, {LEDGER.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
