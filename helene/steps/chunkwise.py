"""The update by torch's own operations: parameter by parameter, chunk by chunk, so that no other copy is held."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from helene import noise
from helene.evaluation.curvature import Estimate
from helene.evaluation.directions import CHUNK, chunks, compute_dtype
from helene.rules import precision
from helene.steps.measurement import Chunk
from helene.steps.plan import StepPlan

if TYPE_CHECKING:
    from helene.steps.base import Base


class RoundingWatch:
    """Counts the 16-bit weights that a nonzero update did not move, in one step."""

    def __init__(self) -> None:
        self._counts: dict[torch.device, Any] = {}  # lost and updated, where the weights are

    def note(self, old: Tensor, new: Tensor, rounded: Tensor) -> None:
        """Take in a chunk: before, after in wide arithmetic, after as stored."""
        wanted = new != old
        counts = torch.stack([(wanted & (rounded == old)).sum(), wanted.sum()])
        self._counts[old.device] = self._counts.get(old.device, 0) + counts

    def warn(self, step: int, stacklevel: int) -> bool:
        """Warn if more than half of the updates were lost, and say whether it did."""
        lost, updated = (
            sum(column) for column in zip((0, 0), *(c.tolist() for c in self._counts.values()), strict=True)
        )
        share = lost / max(1, updated)
        if share > 0.5:
            warnings.warn(
                f"step {step} lost {share:.0%} of the updates of 16-bit weights to rounding: they are below half a "
                "unit in the last place; rounding='stochastic' keeps them in the mean, float32 weights keep them",
                stacklevel=stacklevel + 1,
            )
        return share > 0.5


class Moves:
    """The move of every parameter and its state, chunk by chunk.

    A chunk's new values are known before the first of them is written, so that writing them again changes nothing. What
    an exception has cut short is therefore made whole by calling `make` again.

    Args:
        optimizer: Whose step it is.
        plan: Of the step.
        watch: Noted what rounding to nearest loses.
        gradient: The gradient estimate.
        estimate: The curvature estimate, where this step makes one.
    """

    def __init__(
        self, optimizer: Base, plan: StepPlan, watch: RoundingWatch | None, gradient: Chunk, estimate: Estimate | None
    ) -> None:
        self._optimizer, self._plan, self._watch = optimizer, plan, watch
        self._gradient, self._estimate = gradient, estimate
        self._spans: list[tuple[int, slice | None]] = []  # None: a parameter that is not contiguous is copied back
        for index, target in enumerate(optimizer.targets):
            p = target.tensor
            self._spans += [(index, slice(start, end)) for start, end in chunks(p.numel(), p.device)]
            self._spans += [] if p.is_contiguous() else [(index, None)]
        self._flat: dict[int, Tensor] = {}  # the copy of the last such parameter
        self._done = 0
        self._known: tuple[int, list[tuple[Tensor, Tensor]]] = -1, []  # number of a chunk, what to copy where

    def make(self) -> None:
        """Make all moves that have not been made."""
        for target in self._optimizer.targets:
            self._optimizer.allocate(target, self._plan.rules[target.layer], self._plan.storage[target.layer])
        while self._done < len(self._spans):
            if self._known[0] != self._done:
                self._known = self._known[0], []  # free before the next are made
                self._known = self._done, self._values(*self._spans[self._done])
            for sink, value in self._known[1]:
                sink.copy_(value)
            self._done += 1

    def _values(self, index: int, span: slice | None) -> list[tuple[Tensor, Tensor]]:
        optimizer, plan, target = self._optimizer, self._plan, self._optimizer.targets[index]
        p, rule = target.tensor, plan.rules[target.layer]
        if span is None:
            return [(p.detach(), self._flat[index].view(p.shape))]
        if not p.is_contiguous() and index not in self._flat:
            self._flat = {index: p.detach().reshape(-1)}
        theta, wide = self._flat.get(index, p.detach()).view(-1)[span], compute_dtype(p.dtype)
        old, g = theta.to(wide), self._gradient(index, span.start, span.stop)
        state = optimizer.read_state(index, rule, span)
        estimate = self._estimate and self._estimate(index, span.start, span.stop, g)
        new, moved = rule.update(plan.step, old, g, state, estimate)
        writes = optimizer.state_writes(index, plan, span, state, moved)
        if rule.lr == 0:
            return writes  # x - 0 would turn a negative zero positive
        if p.dtype != wide and plan.storage[target.layer].rounding == "stochastic":
            words = optimizer.words(plan, noise.ROUNDING_DRAW, target, span)
            new = precision.round_stochastically(new, words, p.dtype)
        elif p.dtype != wide:
            wanted, new = new, new.to(p.dtype)
            if self._watch is not None:
                self._watch.note(old, wanted, new)
        return [*writes, (theta, new)]


class Observations(Moves):
    """The part of a step that takes its estimate into h, for kernels that make the rest with h as it is then."""

    def _values(self, index: int, span: slice | None) -> list[tuple[Tensor, Tensor]]:
        assert span is not None
        assert self._estimate is not None
        optimizer, plan = self._optimizer, self._plan
        rule: Any = plan.rules[optimizer.targets[index].layer]
        state = optimizer.read_state(index, rule, span)
        seen = rule.observe(state, self._estimate(index, span.start, span.stop, None))
        return optimizer.state_writes(index, plan, span, state, seen)


def sample_rounding(
    optimizer: Base, plan: StepPlan, watch: RoundingWatch, gradient: Chunk, estimate: Estimate | None
) -> None:
    """Show the watch what the update of each parameter's first elements loses, moving nothing."""
    for index, target in enumerate(optimizer.targets):
        p, rule = target.tensor, plan.rules[target.layer]
        if plan.storage[target.layer].rounding == "stochastic" or p.dtype == (wide := compute_dtype(p.dtype)):
            continue
        span = slice(0, min(p.numel(), CHUNK))
        old, g = p.detach().reshape(-1)[span].to(wide), gradient(index, span.start, span.stop)
        state = optimizer.read_state(index, rule, span)
        new, _ = rule.update(plan.step, old, g, state, estimate and estimate(index, span.start, span.stop, g))
        watch.note(old, new, new.to(p.dtype))
