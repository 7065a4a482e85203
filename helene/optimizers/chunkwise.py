"""The update by torch's own operations: parameter by parameter, chunk by chunk, so that no other copy is held."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from helene import noise, precision
from helene.directions import CHUNK, chunks, compute_dtype
from helene.optimizers import state as storage

if TYPE_CHECKING:
    from helene.optimizers.base import Base, Chunk
    from helene.optimizers.rounding import RoundingWatch


class Moves:
    """The move of every parameter and its state, chunk by chunk.

    A chunk's new values are known before the first of them is written, so that writing them again changes nothing. What
    an exception has cut short is therefore made whole by calling `make` again.

    Args:
        optimizer: Whose step it is.
        watch: Noted what rounding to nearest loses.
        gradient: The gradient estimate.
    """

    def __init__(self, optimizer: Base, watch: RoundingWatch | None, gradient: Chunk) -> None:
        self._optimizer, self._watch, self._gradient = optimizer, watch, gradient
        self._spans: list[tuple[int, slice | None]] = []  # None: a parameter that is not contiguous is copied back
        for index, target in enumerate(optimizer._targets):
            p = target.tensor
            self._spans += [(index, slice(start, end)) for start, end in chunks(p.numel(), p.device)]
            self._spans += [] if p.is_contiguous() else [(index, None)]
        self._flat: dict[int, Tensor] = {}  # the copy of the last such parameter
        self._done = 0
        self._known: tuple[int, list[tuple[Tensor, Tensor]]] = -1, []  # number of a chunk, what to copy where

    @property
    def begun(self) -> bool:
        """Whether anything may have been written."""
        return self._known[0] >= 0

    def make(self) -> None:
        """Make all moves that have not been made."""
        for target, group in zip(self._optimizer._targets, self._optimizer._groups, strict=True):
            self._optimizer._allocate(target.tensor, group)
        while self._done < len(self._spans):
            if self._known[0] != self._done:
                self._known = self._known[0], []  # free before the next are made
                self._known = self._done, self._values(*self._spans[self._done])
            for sink, value in self._known[1]:
                sink.copy_(value)
            self._done += 1

    def _values(self, index: int, span: slice | None) -> list[tuple[Tensor, Tensor]]:
        optimizer, target, group = self._optimizer, self._optimizer._targets[index], self._optimizer._groups[index]
        p = target.tensor
        if span is None:
            return [(p.detach(), self._flat[index].view(p.shape))]
        if not p.is_contiguous() and index not in self._flat:
            self._flat = {index: p.detach().reshape(-1)}
        theta, wide = self._flat.get(index, p.detach()).view(-1)[span], compute_dtype(p.dtype)
        old, g = theta.to(wide), self._gradient(index, span.start, span.stop)
        state = {name: storage.read(optimizer.state[p], name, span, wide) for name in optimizer._STATE}
        new, updates = optimizer._update(group, old, g, state, optimizer._estimate(index, span, g))
        writes = optimizer._state_writes(index, span, updates)
        if group["lr"] == 0:
            return writes  # x - 0 would turn a negative zero positive
        if p.dtype != wide and group["rounding"] == "stochastic":
            words = optimizer._words(noise.ROUNDING_DRAW, target, span)
            new = precision.round_stochastically(new, words, p.dtype)
        elif p.dtype != wide:
            wanted, new = new, new.to(p.dtype)
            if self._watch is not None:
                self._watch.note(old, wanted, new)
        return [*writes, (theta, new)]


def apply(optimizer: Base, watch: RoundingWatch | None, gradient: Chunk) -> None:
    """Move every parameter and its state, see `Moves`."""
    Moves(optimizer, watch, gradient).make()


def sample_rounding(optimizer: Base, watch: RoundingWatch, gradient: Chunk) -> None:
    """Show the watch what the update of each parameter's first elements loses, moving nothing."""
    for index, (target, group) in enumerate(zip(optimizer._targets, optimizer._groups, strict=True)):
        p = target.tensor
        if group["rounding"] == "stochastic" or p.dtype == (wide := compute_dtype(p.dtype)):
            continue
        span = slice(0, min(p.numel(), CHUNK))
        old, g = p.detach().reshape(-1)[span].to(wide), gradient(index, span.start, span.stop)
        state = {name: optimizer._read_state(index, name, span) for name in optimizer._STATE}
        new, _ = optimizer._update(group, old, g, state, optimizer._estimate(index, span, g))
        watch.note(old, new, new.to(p.dtype))
