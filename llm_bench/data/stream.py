"""Which rows make the t-th minibatch, a function of a seed and t, and their shares for ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")


def shares(batch: Sequence[T], ranks: int) -> list[Sequence[T]]:
    """The equal parts of a batch that its ranks take, in order.

    Raises:
        ValueError: If it has none.
    """
    if len(batch) % ranks:
        raise ValueError(f"a batch of {len(batch)} rows cannot be shared by {ranks} ranks; take a multiple of {ranks}")
    each = len(batch) // ranks
    return [batch[rank * each : (rank + 1) * each] for rank in range(ranks)]


class BatchStream:
    """Epoch after epoch of shuffled rows, cut into batches of one size without regard to epochs.

    No batch is smaller than the others, so that all have one shape; each row comes once an epoch.

    Args:
        num_rows: Rows to draw from, at least 1.
        batch_size: Rows of a batch; all rows where there are fewer.
        seed: Of the order.
    """

    def __init__(self, num_rows: int, batch_size: int, seed: int) -> None:
        if num_rows < 1 or batch_size < 1:
            raise ValueError(f"num_rows and batch_size must be at least 1, got {num_rows} and {batch_size}")
        self.num_rows, self.batch_size, self.seed = num_rows, min(batch_size, num_rows), seed
        self._epoch = lru_cache(maxsize=2)(self._shuffled)

    def rows(self, step: int) -> list[int]:
        """Rows of the step's batch; the first step is 1."""
        first = (step - 1) * self.batch_size
        return [self._epoch(i // self.num_rows)[i % self.num_rows] for i in range(first, first + self.batch_size)]

    def _shuffled(self, epoch: int) -> list[int]:
        def key(row: int) -> bytes:
            return hashlib.blake2b(f"batches/{self.seed}/{epoch}/{row}".encode(), digest_size=8).digest()

        return sorted(range(self.num_rows), key=key)
