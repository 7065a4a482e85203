"""Which group of the batch's rows each place belongs to that an operation sees."""

from __future__ import annotations

import torch
from torch import Tensor

from helene.evaluation.grouped import rows

WAY_OUT = "freeze it, or take MeZO, whose directions suit any model"


class UnequalGroups(ValueError):
    """So many groups of one size cannot share a batch.

    Args:
        groups: How many.
        places: How many the batch has: examples, or rows, of which each example has equally many.
        seen: Where they were counted.
    """

    def __init__(self, groups: int, places: int, seen: str) -> None:
        super().__init__(
            f"groups must divide the number of examples, and groups={groups} does not divide {places}; take a divisor, "
            f"groups='auto', or drop_last=True of the loader ({seen})"
        )
        self.places = places


class Places:
    """Groups are equal parts of the first axis, in its order.

    An operation sees that axis, or one axis that is a flattening of it with those that follow, or the places that
    `helene.evaluation.grouped.rows` tells of.

    Args:
        groups: How many.

    Attributes:
        rows: Rows of the batch, known once a trained parameter is read; None before.
        chosen: Numbers of places on one axis that are neither the rows nor all places of an operation before, so that
            the forward may have chosen them by what the batch holds.
    """

    def __init__(self, groups: int) -> None:
        self.rows: int | None = None
        self.chosen: frozenset[int] = frozenset()
        self._groups = groups
        self._whole: set[int] = set()  # numbers of all places of operations that saw rows on an axis

    def groups_of(self, lead: torch.Size, parameter: str, function: str) -> Tensor | None:
        """The group of each place of these axes; None where groups are equal parts of all places, in order.

        Args:
            lead: Axes of an operation, without that of columns.
            parameter: Name of the one that it reads.
            function: Its own name.

        Raises:
            ValueError: If it is not known where the rows are, or groups cannot share them (`UnequalGroups`).
        """
        groups, told = self._groups, rows.gathered()
        if groups == 1:
            return None
        name = f"parameter {parameter} is read by torch's {function}, which sees axes {tuple(lead)}"
        if told is not None:
            if lead.numel() != told.rows.numel():
                raise ValueError(f"{name} where {told.rows.numel()} places of the batch's rows were told; {WAY_OUT}")
            return told.rows * groups // told.total
        self.rows = self.rows or (lead[0] if lead else 1)
        if self.rows % groups:
            raise UnequalGroups(groups, self.rows, name)
        if not lead or (lead[0] != self.rows and (len(lead) > 1 or lead[0] % self.rows)):
            raise ValueError(
                f"{name} where the batch has {self.rows} rows, so that groups={groups} groups of them are not known "
                f"there; keep rows first, or say where they went by helene.evaluation.grouped.rows; {WAY_OUT}"
            )
        if lead[0] == self.rows:
            self._whole.add(lead.numel())
        elif lead[0] not in self._whole:
            self.chosen |= {lead[0]}
        return None
