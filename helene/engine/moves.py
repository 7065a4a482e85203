"""The update of a first-order step, recorded once and replayed while nothing but the step's number changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from helene.engine.batches import Layout
from helene.engine.recordings import Compute, Recordings
from helene.evaluation.undo import deferred_interrupts
from helene.rules import CurvatureRule, storage
from helene.steps import chunkwise
from helene.steps.base import Base
from helene.steps.measurement import Chunk
from helene.steps.plan import StepPlan


class RecordedMoves:
    """The moves of an optimizer's steps; see `helene.steps.base.Base.moves_by`.

    The first step with some hyper-parameters moves without a graph, the second is captured. So a learning rate that
    changes at each step is never captured; neither are moves that draw words to round with, or that look what rounding
    loses.

    Args:
        optimizer: A first-order one.
        capture: See `helene.engine.recordings.Recordings`.
        replayed: Gives the step's gradient where it lies at addresses of its own for good, else None.
    """

    def __init__(
        self,
        optimizer: Base,
        capture: bool | Literal["repeat"],
        replayed: Callable[[], Sequence[Tensor] | None],
    ) -> None:
        self._optimizer, self._replayed = optimizer, replayed
        self.recordings = Recordings(optimizer.targets[0].tensor.device, capture, 1)

    def __call__(self, plan: StepPlan, gradient: Chunk, watch: chunkwise.RoundingWatch | None) -> _Replayed | None:
        """The moves of a step, or None where they are to be made without."""
        optimizer, gradients = self._optimizer, self._replayed()
        curved = any(isinstance(rule, CurvatureRule) for rule in plan.rules)
        if watch is not None or curved or gradients is None:
            return None
        held = [tensor.data_ptr() for tensor in gradients]
        for target in optimizer.targets:
            rule, way, p = plan.rules[target.layer], plan.storage[target.layer], target.tensor
            state = optimizer.allocate(target, rule, way)
            draws = way.rounding == "stochastic" and p.dtype in (torch.bfloat16, torch.float16)
            if draws or any(storage.is_rounded(state, name) for name in rule.kept):
                return None
            held += [p.data_ptr(), *(tensor.data_ptr() for tensor in state.values())]
        return _Replayed(optimizer, plan, gradient, self.recordings, (plan.rules, plan.storage, tuple(held)))


class _Replayed:
    """Moves that can be neither repeated nor undone, so that Ctrl-C waits for the last of them."""

    def __init__(self, optimizer: Base, plan: StepPlan, gradient: Chunk, recordings: Recordings, key: Any) -> None:
        self._optimizer, self._plan, self._gradient = optimizer, plan, gradient
        self._recordings, self._key = recordings, key
        self.begun = False

    def make(self) -> None:
        """Make them, once."""
        with deferred_interrupts():
            if self.begun:
                return
            self.begun = True
            number = {"step": torch.tensor(float(self._plan.step), dtype=torch.float64)}
            if self._recordings.compute(self._key, Layout(number), self._recorded) is None:
                self._moves(self._plan).make()
                self._recordings.keep(self._key)

    def _recorded(self, static: Any) -> Compute:
        same = {rule: rule for rule in self._plan.rules}
        rules = tuple(same[rule] for rule in self._plan.rules)  # what equal layers share is computed once

        def compute() -> tuple[()]:
            self._moves(self._plan._replace(step=static["step"], rules=rules)).make()
            return ()

        return compute

    def _moves(self, plan: StepPlan) -> chunkwise.Moves:
        return chunkwise.Moves(self._optimizer, plan, None, self._gradient, None)
