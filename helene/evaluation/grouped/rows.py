"""Where a model gathers places of its batch's rows, and so loses the axis of rows: it says which row each came from.

A head that runs on a few places of each row alone is one such: the operations after the gathering see places, not
rows. What perturbs row by row (`helene.evaluation.grouped.places`) asks here.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from torch import Tensor

_here = threading.local()


class Gathered(NamedTuple):
    """What operations see instead of rows.

    Attributes:
        rows: The row that each place came from, int64, one axis.
        total: Number of rows of the batch.
    """

    rows: Tensor
    total: int


@contextmanager
def whole() -> Iterator[None]:
    """At the end, operations see what they saw at the start, whatever `gather` has said in between."""
    before = gathered()
    try:
        yield
    finally:
        _here.gathered = before


def gather(rows: Tensor, total: int) -> None:
    """From here on, in this thread, operations see places that came from these rows of ``total``; inside `whole`."""
    _here.gathered = Gathered(rows, total)


def gathered() -> Gathered | None:
    """What this thread's operations see instead of rows, None where they see the batch's."""
    return getattr(_here, "gathered", None)
