"""Data parallel: every rank holds all parameters and evaluates its share of the batch; only losses are exchanged."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from helene.engine.reasons import first_line
from helene.evaluation.directions import Target
from helene.evaluation.grouped.factors import Factors
from helene.inputs import numeric
from helene.steps.base import Base
from helene.steps.plan import StepPlan
from helene.steps.saved import fingerprint


class Ranks:
    """The processes that share a run.

    Args:
        group: A process group of torch.distributed, or None for the default one; without an initialised
            torch.distributed there is one rank.
        check_every: Steps between the checks of `check_at`.

    Raises:
        ValueError: If that is below 1.
    """

    def __init__(self, group: Any = None, check_every: int = 1000) -> None:
        numeric.whole(check_every, "check_every", 1, 1 << 62, "1000 is usual")
        self.group, self._check_every = group, check_every
        alive = dist.is_available() and dist.is_initialized()
        self.size = dist.get_world_size(group) if alive else 1
        self.rank = dist.get_rank(group) if alive else 0

    def add(self, losses: Tensor) -> None:
        """Replace losses by their sums over the ranks: the one exchange of a pair.

        Raises:
            RuntimeError: If a rank has died.
        """
        if self.size > 1:
            self._exchange(losses, dist.ReduceOp.SUM, "losses")

    def _exchange(self, numbers: Tensor, how: Any, what: str) -> None:
        try:
            dist.all_reduce(numbers, op=how, group=self.group)
        except RuntimeError as error:
            raise RuntimeError(
                f"rank {self.rank} could not exchange {what} ({first_line(error)}): another rank has probably died; "
                "parameters are those of the step before, start all ranks again from a checkpoint"
            ) from error

    def check(self, targets: Sequence[Target], numbers: Sequence[int], what: str) -> None:
        """Make sure that all ranks hold the same parameters and the same numbers.

        Args:
            targets: The trained parameters.
            numbers: Others that must agree, such as the seed and the step.
            what: Their names, for the message.

        Raises:
            RuntimeError: If they do not; it names the first parameter that differs.
        """
        if self.size == 1:
            return
        device = targets[0].tensor.device
        # Few numbers, as many on every rank: what follows has as many as there are parameters.
        names = zlib.crc32(repr([(t.name, t.id, tuple(t.tensor.shape), str(t.tensor.dtype)) for t in targets]).encode())
        mine = torch.tensor([len(targets), names, *map(_signed, numbers)], dtype=torch.int64, device=device)
        differ = self._differ(mine)
        if differ and differ[0] < 2:
            raise RuntimeError(
                f"ranks train other parameters: rank {self.rank} has {len(targets)}, the first {targets[0].name}; "
                "build the same model on every rank"
            )
        if differ:
            raise RuntimeError(f"ranks differ in {what}; give every rank the same")
        differ = self._differ(torch.cat([fingerprint(t.tensor).to(device) for t in targets]))
        if differ:
            raise RuntimeError(
                f"ranks hold different parameters (first {targets[differ[0] // 2].name}); load the same weights on "
                "every rank before the first step"
            )

    def check_at(self, optimizer: Base, plan: StepPlan) -> None:
        """`check_step`, each so many steps."""
        if plan.step % self._check_every == 0:
            self.check_step(optimizer, plan)

    def check_step(self, optimizer: Base, plan: StepPlan) -> None:
        """Make sure that all ranks are about to make the same step from the same parameters.

        Raises:
            RuntimeError: If they are not.
        """
        numbers = plan.seed, plan.step, zlib.crc32(plan.fingerprint().encode())
        self.check(optimizer.targets, numbers, "seed, step or a hyper-parameter")

    def check_numbers(self, numbers: Sequence[int], device: torch.device, what: str) -> None:
        """Raise RuntimeError unless all ranks hold the same numbers."""
        mine = torch.tensor([_signed(n) for n in numbers], dtype=torch.int64, device=device)
        if self.size > 1 and self._differ(mine):
            raise RuntimeError(f"ranks differ in {what}; give every rank the same")

    def _differ(self, numbers: Tensor) -> list[int]:
        """Where ranks do not have the same numbers."""
        low, high = numbers.clone(), numbers.clone()
        self._exchange(low, dist.ReduceOp.MIN, "fingerprints")
        self._exchange(high, dist.ReduceOp.MAX, "fingerprints")
        found: list[int] = (low != high).nonzero().flatten().tolist()
        return found


class GroupShare:
    """A rank's share of the groups of a step: equal parts, in the order of the ranks.

    Args:
        ranks: Two or more.
        device: Where losses are exchanged.
    """

    def __init__(self, ranks: Ranks, device: torch.device) -> None:
        self._ranks, self._device = ranks, device

    def part(self, factors: Factors) -> Factors:
        """The directions that this rank's examples see.

        Raises:
            ValueError: If ranks cannot have equally many.
        """
        size = self._ranks.size
        if factors.groups % size:
            raise ValueError(f"groups={factors.groups} cannot be shared by {size} ranks; take a multiple of {size}")
        each = factors.groups // size
        return factors.part(self._ranks.rank * each, each)

    def whole(self, found: Tensor) -> Tensor:
        """What all ranks have found: the one exchange of a step, 4 numbers a group.

        Args:
            found: By `helene.optimizers.grouped.by_group` of this rank's groups, finite or not.

        Raises:
            ValueError: If ranks have groups of other sizes.
            RuntimeError: If a rank has died.
        """
        size, rank, each = self._ranks.size, self._ranks.rank, found.shape[1]
        of_all = torch.zeros(found.shape[0], size * each, dtype=found.dtype, device=self._device)
        of_all[:, rank * each : (rank + 1) * each] = found
        self._ranks.add(of_all)
        told = of_all.cpu()
        *_, examples = told
        sizes = sorted(set(examples.tolist()))
        if len(sizes) > 1:
            raise ValueError(f"ranks have groups of {sizes[0]:.0f} and {sizes[-1]:.0f} examples; give each as many")
        return told


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number
