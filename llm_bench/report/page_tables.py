"""Tables that a command writes into a page, between marks of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table as pages have it."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def begin(name: str) -> str:
    """The mark before the table of that name."""
    return f"<!-- {name}: begin -->"


def end(name: str) -> str:
    """The mark after it."""
    return f"<!-- {name}: end -->"


def put_between_marks(page: str, name: str, table: str) -> str:
    """The page with the table between the marks.

    Raises:
        ValueError: If the marks are not there, once each and in order.
    """
    before, first, rest = page.partition(begin(name))
    _, last, after = rest.partition(end(name))
    if not first or not last or first in after:
        raise ValueError(f"the page must hold {begin(name)} and, after it, {end(name)}, once each")
    return f"{before}{first}\n{table}\n{last}{after}"
