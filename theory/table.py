"""The README's table of verdicts: ``python -m theory.table`` prints it, with ``--write README.md`` puts it in place.

It shows what the modules expect; ``pytest theory/`` fails where a run finds something else, and a test holds the README
to this table.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from theory.ledger import book

BEGIN, END = "<!-- ledger:begin -->", "<!-- ledger:end -->"


def markdown() -> str:
    """The table: a group for each section, a line for each claim, linked to the module that judges it."""
    claims = book.load_claims()
    records = [{"id": claim.id, "verdict": claim.expected} for claim in claims]
    lines = [book.answer(records), ""]
    for section in dict.fromkeys(book.section_of(claim.id) for claim in claims):
        lines += [f"**{section}**", "", "| claim | verdict | what was found |", "| --- | --- | --- |"]
        for claim in claims:
            if book.section_of(claim.id) == section:
                verdict, answer = claim.expected.replace("_", " "), claim.answer.replace("|", "\\|")
                lines.append(f"| [{claim.id}]({book.module_of(claim.id)}) | {verdict} | {answer} |")
        lines.append("")
    return "\n".join(lines)


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
    """Prints the table, or writes it into a file."""
    parser = argparse.ArgumentParser(prog="python -m theory.table", description=__doc__.partition("\n")[0])
    parser.add_argument("--write", type=Path, metavar="FILE", help="put it between the markers in this file")
    path = parser.parse_args().write
    if path is None:
        print(markdown(), end="")
    else:
        path.write_text(placed(path.read_text(encoding="utf-8"), markdown()), encoding="utf-8")


if __name__ == "__main__":
    main()
