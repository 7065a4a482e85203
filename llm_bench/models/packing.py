"""Forwards of packed batches: attention sees rows, every other layer the tokens of all rows one after the other.

A batch of `llm_bench.data.batches.packed` has no padding. What a model computes place by place is then computed for
real tokens alone; queries, keys and values are laid out in rows again, with the mask that rows have.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from torch import Tensor

_here = threading.local()  # a captured step runs two forwards, each in a thread of its own


class Packing(NamedTuple):
    """How a forward's tokens lie.

    Attributes:
        places: Where each lies in the flattened rows, shape (tokens,).
        slots: Where each place of a row lies among them, shape (rows, time).
        mask: Which places are real, shape (rows, time).
    """

    places: Tensor
    slots: Tensor
    mask: Tensor

    def in_rows(self, x: Tensor) -> Tensor:
        """(1, heads, tokens, size) to (rows, heads, time, size)."""
        return _take(x[0], 1, self.slots).transpose(0, 1)

    def in_one(self, y: Tensor) -> Tensor:
        """(rows, time, heads, size) to (1, tokens, heads, size)."""
        return _take(y.flatten(0, 1), 0, self.places)[None]


def _take(x: Tensor, dim: int, indices: Tensor) -> Tensor:
    """x at indices of an axis, which take its place. Only the backward of `index_select` need not sort the indices."""
    if x.requires_grad:
        return x.index_select(dim, indices.flatten()).unflatten(dim, indices.shape)
    return x[(slice(None),) * dim + (indices,)]


@contextmanager
def packing(how: Packing) -> Iterator[None]:
    """Inside, in this thread, models see tokens that lie so."""
    _here.packing = how
    try:
        yield
    finally:
        _here.packing = None


def current() -> Packing | None:
    """How this thread's tokens lie, None where they are rows."""
    return getattr(_here, "packing", None)
