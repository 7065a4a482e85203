"""Losses of a batch whose groups of rows are perturbed along directions of their own."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from helene.evaluation.blocks import Scratch
from helene.evaluation.directions import Target
from helene.evaluation.grouped.factors import Factors, Mirrored
from helene.evaluation.grouped.operations import Read
from helene.evaluation.grouped.places import WAY_OUT, UnequalGroups
from helene.evaluation.grouped.rowwise import RowPerturbation
from helene.evaluation.losses import Closure, finite, one_number, scalar_loss
from helene.evaluation.modules import is_compiled, listed
from helene.evaluation.probe import unwritten
from helene.evaluation.reads import BufferWatch, ReadWatch, reads_none
from helene.evaluation.undo import Undo

LEAK = 1e-3  # share of the largest difference of a pair that another group's direction may move a loss by


class GroupProbe:
    """Evaluates a closure that returns a loss for each example, each group of them at theta + radius z_g.

    No parameter is written or copied: scratch memory is none.

    Args:
        targets: The trained parameters.
        model: The module that reads them, if it is known: its buffers are looked at, and it may not be compiled.

    Attributes:
        reads_none: Whether the last evaluation read no parameter by an operation of torch; an error with the model.
        recorded: Gives the losses of both sides in the place of the closure, see `helene.engine.groups`.
        outgrown: See `helene.evaluation.probe.Probe`; without scratch memory, never.
    """

    recorded: Callable[[], Tensor] | None = None
    outgrown = False

    def __init__(self, targets: Sequence[Target], model: nn.Module | None = None) -> None:
        self.targets, self._model = list(targets), model
        self.scratch = Scratch()
        self.reads_none = False
        self._seen: set[tuple[int, frozenset[int]]] = set()  # groups and chosen places that were found apart
        self._chosen: frozenset[int] = frozenset()  # see `Places.chosen`, of the last forward
        self._shared: set[int] = set()  # see `Operations`
        for target in targets:
            if target.tensor.dim() > 2:
                raise ValueError(
                    f"parameter {target.name} has shape {tuple(target.tensor.shape)}, directions of low rank are for "
                    f"matrices and vectors; {WAY_OUT}"
                )
        if model is not None and is_compiled(model):
            raise ValueError(
                "the model is compiled, so that no function of torch is seen to read its parameters; give the plain one"
            )

    def pair(self, closure: Closure, factors: Factors, radius: float) -> Tensor:
        """The losses at theta ± radius z_g, shape (2, examples), detached; `finite` is to be asked of them.

        The first time, and where groups are others or the forward chooses another number of places, what reads the
        parameters is looked at, and whether the loss of an example follows its own group's direction alone. That takes
        a forward more for each bit of a group's number, so that any two groups are told apart.

        Raises:
            ValueError: If the closure returns no loss for each example or group, groups are not of one size, a
                parameter is read in a way that groups have no share in, or losses depend on other groups' rows.
            FloatingPointError: If a loss of a forward that looks is not finite.
        """
        if self.recorded is not None:
            return self.recorded()
        watch, buffers = None, BufferWatch(None if self._seen else self._model)
        if not self._seen:
            watch = ReadWatch([target.tensor for target in self.targets])
        sides = torch.stack([self.losses(closure, factors, radius, watch), self.losses(closure, factors, -radius)])
        seen = factors.groups, self._chosen
        if seen not in self._seen and bool(sides.isfinite().all()):  # else the step is refused, on all ranks alike
            for bit in range((factors.groups - 1).bit_length()):
                self._check_apart(closure, factors, radius, sides, bit)
            if buffers.told:
                warnings.warn(buffers.told, stacklevel=3)
            self._seen.add(seen)
        return sides

    def twin(self) -> GroupProbe:
        """Another one, for other forwards of the same batches: it knows the embeddings whose places all rows share."""
        made = GroupProbe(self.targets, self._model)
        made._shared |= self._shared
        return made

    def look_again(self) -> None:
        """Check the next evaluation as the first one was."""
        self._seen.clear()

    def loss_here(self, closure: Closure) -> Tensor:
        """The mean of the losses at theta, a 0-dim tensor."""
        with torch.no_grad():
            value = closure()
            return scalar_loss(value.mean() if isinstance(value, Tensor) and value.dim() else value)

    def losses(
        self, closure: Closure, factors: Factors | Mirrored, radius: float, watch: ReadWatch | None = None
    ) -> Tensor:
        """The losses at theta + radius z_g, shape (examples,), detached; whether they are finite is not looked at."""
        mode, undo = RowPerturbation(self.targets, factors, radius, watch, self._shared), Undo()
        with unwritten(self.targets):
            try:
                try:
                    undo.modes()
                    undo.note(partial(_leave, torch._C._len_torch_function_stack()))
                    torch.set_grad_enabled(False)
                    if watch is not None:
                        watch.__enter__()  # undone with the modes
                    mode.__enter__()
                    value = closure()
                finally:
                    undo.run()
            finally:
                undo.run()
        read, places = mode.operations.read, mode.operations.places
        losses, self._chosen = example_losses(value, factors.groups, places.rows), places.chosen
        self.reads_none = not read and any(target.tensor.numel() for target in self.targets)
        if self.reads_none and self._model is not None:
            raise ValueError(reads_none([target.name for target in self.targets]))
        if watch is not None:
            self._check_reads(read, watch)
        return losses

    def _check_reads(self, read: set[int], watch: ReadWatch) -> None:
        if watch.seen:
            raise ValueError(
                f"parameters {listed(self.targets, sorted(watch.seen))} are read out of sight, through another tensor "
                "that shares their memory or by an operation of its own, so that they would stay unperturbed; "
                f"{WAY_OUT}"
            )
        idle = [i for i, target in enumerate(self.targets) if i not in read and target.tensor.numel()]
        if idle and not self.reads_none:
            warnings.warn(
                f"{listed(self.targets, idle)}: not read by the first loss; what no loss reads only walks at random, "
                "so freeze it",
                stacklevel=4,
            )

    def _check_apart(self, closure: Closure, factors: Factors, radius: float, sides: Tensor, bit: int) -> None:
        """Raise ValueError unless losses stay as they were when the groups that have a bit are reversed."""
        plus, minus = sides
        mixed = self.losses(closure, factors.reversed_where(bit), radius)
        finite(mixed)
        group = torch.arange(plus.numel(), device=plus.device) * factors.groups // plus.numel()
        off = (mixed - torch.where(group >> bit & 1 == 0, plus, minus)).abs().max().item()
        rounding = 8 * torch.finfo(plus.dtype).eps * plus.abs().max().item()
        if off > LEAK * (plus - minus).abs().max().item() + rounding:
            raise ValueError(
                f"losses move by {off:.2g} with the directions of other groups, so that examples are not apart (batch "
                "norm, losses over pairs of rows) or rows are not the first axis; with groups=1 they need not be. "
                "Or the closure draws another minibatch each time; draw it before the closure"
            )


def example_losses(value: Any, groups: int, num_rows: int | None = None) -> Tensor:
    """A closure's losses, detached, floating point, shape (examples,).

    Raises:
        ValueError: If they are not one real number for each example or group.
    """
    if groups == 1 and not (isinstance(value, Tensor) and value.dim() == 1 and value.numel()):
        if not isinstance(value, Tensor):
            return scalar_loss(value).reshape(1)
        value = one_number(value, "the closure").reshape(1)
    if isinstance(value, Read):
        raise ValueError(
            "the losses are a parameter combined with a tensor of one axis, which may be rows or columns; keep an axis "
            "of columns, shape (rows, 1), until the parameter has been read"
        )
    if not isinstance(value, Tensor) or value.dim() != 1 or value.is_complex():
        got = f"a {type(value).__name__}"
        if isinstance(value, Tensor):
            got = f"shape {tuple(value.shape)}" if value.dim() else "one number"
        raise ValueError(
            f"the closure returned {got}; with groups={groups} it must return the loss of each example (a loss's "
            "reduction='none'), or of each group; microbatches has one number, so give the whole batch without it"
        )
    if not value.numel():
        raise ValueError("the closure returned no loss; give batches of one example or more")
    if value.numel() % groups:
        raise UnequalGroups(groups, value.numel(), f"the closure returned {value.numel()} losses")
    if num_rows is not None and num_rows % value.numel():
        raise ValueError(
            f"the closure returned {value.numel()} losses of {num_rows} rows; with groups={groups} each example must "
            "have equally many rows"
        )
    losses = value.detach()
    return losses if losses.is_floating_point() else losses.double()


def _leave(depth: int) -> None:
    """Leave the modes of functions that were entered since."""
    while torch._C._len_torch_function_stack() > depth:
        torch._C._pop_torch_function_stack()
