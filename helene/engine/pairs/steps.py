"""Steps of pairs of forwards while model and optimizer stay what they are: run, then recorded, then replayed."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from helene.engine.batches import Layout
from helene.engine.pairs.batch_step import BatchStep
from helene.engine.pairs.shared import Shared
from helene.engine.ranks import Ranks
from helene.engine.reasons import first_line
from helene.engine.watch import ModelWatch, OptimizerWatch
from helene.evaluation.losses import Closure
from helene.evaluation.modules import strangers
from helene.evaluation.reads import BufferWatch
from helene.evaluation.undo import deferred_interrupts
from helene.steps.measurement import Measured
from helene.steps.plan import Probing, StepPlan
from helene.steps.resolution import COARSE
from helene.steps.zeroth import ZerothOrder

MANY_SHAPES = (
    "batches take turns in more than max_shapes={} shapes, so steps are captured again; raise max_shapes, or pad "
    "batches to fewer shapes"
)


class Made(NamedTuple):
    """A step: its loss, how it ran, and why not as one graph, see `Engine`."""

    loss: Tensor
    mode: str
    reason: str


class Steps:
    """Makes steps, each shape's first without a graph; to be made anew once model or optimizer have changed.

    Args:
        shared: What they have in common.
        optimizer: Whose steps these are.
        plan: Of the coming step; later ones have its structure.
        ranks: The processes that share the run.
        no_graph: Why steps are not recorded, in one line; empty where they are.
        repeat: Whether recorded steps are repeated call by call, see `BatchStep.record`.
        max_shapes: Shapes that are kept.
        tell: Warns once of what it is told: forwards that cannot be captured, shapes that come again after they were
            given up, and what the first forward read and wrote.

    Attributes:
        shapes: The step of each batch shape seen, the latest last.
    """

    def __init__(
        self,
        shared: Shared,
        optimizer: ZerothOrder,
        plan: StepPlan,
        *,
        ranks: Ranks,
        no_graph: str,
        repeat: bool,
        max_shapes: int,
        tell: Callable[[str], None],
    ) -> None:
        self._shared, self._optimizer, self._updates, self._ranks = shared, optimizer, shared.updates, ranks
        self._no_graph, self._repeat, self._max_shapes, self._tell = no_graph, repeat, max_shapes, tell
        self.shapes: OrderedDict[Any, BatchStep] = OrderedDict()
        self._given_up: set[Any] = set()
        self._optimizer_watch = OptimizerWatch(optimizer, plan)
        self._model_watch = ModelWatch(shared.model)
        self._is_first = True

    def changed(self, plan: StepPlan) -> bool:
        """Whether model or optimizer are other than a captured step has seen them."""
        return self._optimizer_watch.changed(plan) or self._model_watch.changed()

    def make(self, plan: StepPlan, layout: Layout, of_source: Closure) -> Made:
        """One update.

        Args:
            plan: What it does.
            layout: The batch.
            of_source: What the source of curvature looks at, where the step estimates h apart.

        Raises:
            ValueError: As `BatchStep.pair`.
            FloatingPointError: If a loss is not finite, of a captured step perhaps later.
            RuntimeError: If a rank has died.
        """
        shape, probing = self._shape_of(layout), plan.probing
        assert isinstance(probing, Probing)
        self._shared.direction = self._optimizer.direction(plan)
        missing = self._aim(plan, probing.eps)
        if shape.graph is None and shape.steps and not (shape.no_graph or self._no_graph):
            self._record(shape, plan)
        if shape.graph is not None:
            with deferred_interrupts(self._ranks.size == 1):  # other ranks may be gone, and must not be waited for
                made = self._replay(shape, plan, missing, of_source)
                self._updates.look_at(plan)
        else:
            self._updates.settle()
            made = self._eager(shape, plan, missing, of_source)
            self._model_watch.look()
            self._updates.look_at(plan)
        shape.steps += 1
        self._optimizer.last_loss = made.loss
        return made

    def _shape_of(self, layout: Layout) -> BatchStep:
        shape = self.shapes.get(layout.key)
        if shape is None:
            shape = self.shapes[layout.key] = BatchStep(self._shared, layout)
            if layout.key in self._given_up and not self._no_graph:
                self._tell(MANY_SHAPES.format(self._max_shapes))
            if len(self.shapes) > self._max_shapes:
                self._given_up.add(self.shapes.popitem(last=False)[0])
        else:
            self.shapes.move_to_end(layout.key)
            shape.static.fill(layout)
        return shape

    def _eager(self, shape: BatchStep, plan: StepPlan, missing: str, of_source: Closure) -> Made:
        buffers = BufferWatch(self._shared.model) if self._is_first else None
        others_may_replay = self._ranks.size > 1 and not (missing or self._no_graph)  # and learn of a broken loss later
        measured = self._measure(
            plan,
            of_source,
            lambda first: torch.stack(shape.pair(first and not shape.steps)),
            refuse=not others_may_replay,
        )
        if not shape.steps and torch.finfo(measured.loss.dtype).bits == 16:
            warnings.warn(COARSE.format(str(measured.loss.dtype).removeprefix("torch.")), stacklevel=5)
        if buffers is not None:
            self._is_first = False
            for told in filter(None, (strangers(self._shared.targets, self._shared.model, shape.read), buffers.told)):
                self._tell(told)
        if shape.losses is None:
            shape.losses = measured.loss.new_empty(2)
        if measured.scalars:
            self._optimizer.finish(plan, measured)
        else:
            self._updates.refused(plan)
        return Made(measured.loss, "eager", self._no_graph or shape.no_graph or "first step of this batch shape")

    def _replay(self, shape: BatchStep, plan: StepPlan, missing: str, of_source: Closure) -> Made:
        if missing:
            try:
                measured = self._measure(plan, of_source, lambda _: self._replayed(shape))
            finally:
                self._updates.settle()
            self._optimizer.finish(plan, measured)
            return Made(measured.loss, "graph", f"the update runs outside of the graph: {missing}")
        losses = self._replayed(shape)
        self._ranks.add(losses)
        if shape.tail is not None:
            shape.tail.replay()
        self._updates.replayed(plan)
        return Made(losses.mean() / self._ranks.size, "graph", "")

    @staticmethod
    def _replayed(shape: BatchStep) -> Tensor:
        """Replay the forwards, with what is recorded beside them; the losses until the next replay."""
        assert shape.graph is not None
        assert shape.losses is not None
        shape.graph.replay()
        return shape.losses

    def _aim(self, plan: StepPlan, radius: float) -> str:
        """Have the next forwards at a radius; why the graph cannot make the update, in one line, or nothing."""
        self._shared.eps = radius
        return self._updates.send(plan, radius)

    def _measure(
        self, plan: StepPlan, of_source: Closure, run: Callable[[bool], Tensor], refuse: bool = True
    ) -> Measured:
        """What the host makes a step of.

        Args:
            plan: Of the step, whose radius has been sent.
            of_source: See `make`.
            run: Gives the losses of a pair of forwards, told whether it is the step's first.
            refuse: Whether a loss that is not finite is an error here; else there are no scalars.

        Raises:
            FloatingPointError: If a loss is not finite, with ``refuse``.
        """
        size, means = self._ranks.size, list[Tensor]()

        def pair(radius: float) -> tuple[float, float]:
            if radius != self._shared.eps:
                self._aim(plan, radius)
            losses = run(not means)
            self._ranks.add(losses)  # before any rank may raise, or the others would wait for it
            means.append(losses.mean() / size)
            plus, minus = (losses.double() / size).tolist()
            return plus, minus

        try:
            scalars = plan.measurement.from_pairs(plan, pair)
        except FloatingPointError:
            if refuse:
                raise
            return Measured([], means[0])
        return self._optimizer.with_source(plan, Measured(scalars, means[0]), of_source)

    def _record(self, shape: BatchStep, plan: StepPlan) -> None:
        compiled = self._shared.compiled
        if compiled is not None and (refusal := shape.compile(compiled)) is not None:
            self._shared.compiled = None
            self._tell(f"forwards are captured as they are, not compiled: {first_line(refusal.__context__ or refusal)}")
        self._updates.prepare(plan)
        self._optimizer_watch.watch_state()
        ranks = self._ranks.size

        def finish() -> None:
            assert shape.losses is not None
            self._updates.enqueue(shape.losses, ranks)
            self._model_watch.look()

        try:
            shape.record(finish, ranks > 1, self._repeat)
        except ValueError:
            raise
        except Exception as error:
            shape.no_graph = f"the forward cannot be captured ({first_line(error.__context__ or error)})"
            self._tell(f"steps run without a CUDA graph: {shape.no_graph}")
