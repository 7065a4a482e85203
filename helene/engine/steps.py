"""Steps of one pair of forwards while model and optimizer stay what they are: run, then recorded, then replayed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from helene import functional
from helene.engine.batch_step import BatchStep, Shared
from helene.engine.batches import Layout
from helene.engine.ranks import Ranks
from helene.engine.reasons import first_line
from helene.engine.watch import ModelWatch, OptimizerWatch
from helene.evaluation.probe import Closure, scalar_loss, strangers
from helene.evaluation.reads import BufferWatch
from helene.evaluation.undo import deferred_interrupts
from helene.steps.measurement import Measured
from helene.steps.plan import Probing, StepPlan
from helene.steps.zeroth import ZerothOrder


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
        tell: Warns once of what it is told: forwards that cannot be captured, and what the first one read and wrote.

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
        self._shared.direction, self._shared.eps = self._optimizer.direction(plan), probing.eps
        if shape.graph is None and shape.steps and not (shape.no_graph or self._no_graph):
            self._record(shape, plan)
            self.look_at_model()
        if shape.graph is not None:
            with deferred_interrupts(self._ranks.size == 1):  # other ranks may be gone, and must not be waited for
                made = self._replay(shape, plan, of_source)
        else:
            self._updates.settle()
            self._updates.send(plan)
            made = self._eager(shape, plan, of_source)
            self.look_at_model()
        shape.steps += 1
        self._optimizer.last_loss = made.loss
        return made

    def _shape_of(self, layout: Layout) -> BatchStep:
        shape = self.shapes.get(layout.key)
        if shape is None:
            shape = self.shapes[layout.key] = BatchStep(self._shared, layout)
            if len(self.shapes) > self._max_shapes:
                self.shapes.popitem(last=False)
        else:
            self.shapes.move_to_end(layout.key)
            shape.static.fill(layout)
        return shape

    def look_at_model(self) -> None:
        """Take the model as it is now: a forward that Python has run may have made a buffer anew."""
        self._model_watch = ModelWatch(self._shared.model)

    def _eager(self, shape: BatchStep, plan: StepPlan, of_source: Closure) -> Made:
        buffers = BufferWatch(self._shared.model) if self._is_first else None
        losses = torch.stack(shape.pair())
        self._ranks.add(losses)  # before any rank may raise, or the others would wait for it
        scalar_loss(losses.mean())
        if buffers is not None:
            self._is_first = False
            for told in filter(None, (strangers(self._shared.targets, self._shared.model, shape.read), buffers.told)):
                self._tell(told)
        if shape.losses is None:
            shape.losses = torch.empty_like(losses)
        loss = self._finish(plan, losses, of_source)
        return Made(loss, "eager", self._no_graph or shape.no_graph or "first step of this batch shape")

    def _replay(self, shape: BatchStep, plan: StepPlan, of_source: Closure) -> Made:
        assert shape.graph is not None
        assert shape.losses is not None
        missing = self._updates.send(plan)
        shape.graph.replay()
        self._ranks.add(shape.losses)
        if missing:
            self._updates.settle()
            scalar_loss(shape.losses.mean())
            return Made(
                self._finish(plan, shape.losses, of_source), "graph", f"the update runs outside of the graph: {missing}"
            )
        if shape.tail is not None:
            shape.tail.replay()
        self._updates.replayed(plan)
        return Made(shape.losses.mean() / self._ranks.size, "graph", "")

    def _finish(self, plan: StepPlan, losses: Tensor, of_source: Closure) -> Tensor:
        """Make the optimizer's update from the losses' sums over the ranks; their mean."""
        plus, minus = (losses.double() / self._ranks.size).tolist()
        loss = losses.mean() / self._ranks.size
        slope = functional.projected_gradient(plus, minus, self._shared.eps)
        measured = self._optimizer.with_source(plan, Measured([slope], loss), of_source)
        self._optimizer.finish(plan, measured)
        return loss

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

        try:
            shape.record(finish, ranks > 1, self._repeat)
        except ValueError:
            raise
        except Exception as error:
            shape.no_graph = f"the forward cannot be captured ({first_line(error.__context__ or error)})"
            self._tell(f"steps run without a CUDA graph: {shape.no_graph}")
