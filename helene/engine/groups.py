"""Steps of `GroupedMeZO` whose forwards are one CUDA graph, replayed; the update runs as it does without."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from helene.engine import batches, reasons
from helene.engine.engine import Loss, on_device
from helene.engine.graphs import Recorded, Repeated, capturing, give_up
from helene.engine.watch import ModelWatch, OptimizerWatch
from helene.evaluation.agreement import check_agreement
from helene.evaluation.factors import Factors, Mirrored
from helene.optimizers.grouped import GroupedMeZO
from helene.steps.plan import StepPlan


class GroupEngine:
    """Steps of a `GroupedMeZO`, their two forwards captured once per batch shape and replayed.

    Same trajectory as ``optimizer.step(lambda: loss(model, batch))``, up to the rounding of forwards. The first step of
    a shape runs without a graph and looks at what is read, the second is captured. Directions are drawn before the
    replay, to where the graph reads them. Without a GPU, or where a forward cannot be captured, steps run without a
    graph; `mode` and `reason` tell.

    With ``doubled`` one forward of a batch that holds its examples twice gives both sides, in half as many launches.
    Where that raises, or its losses differ from two forwards' by more than rounding, there are two, with a warning.

    Args:
        model: The module whose forward the loss runs. Its parameters stay where they are.
        optimizer: Over its parameters, or some of them.
        loss: ``loss(model, batch)`` gives the loss of each example, or of each group.
        capture: Whether to use CUDA graphs. "repeat" makes the calls anew in the place of a replay: for tests on a
            machine without a GPU.
        doubled: For batches that are dicts whose tensors all have examples, rows or the like on their first axis: which
            of them are indices, and into the first axis of which others, ``{}`` where none is. The rest is repeated.
        max_shapes: Shapes whose captured forwards are kept.

    Attributes:
        mode: How the last step ran: "graph" or "plain".
        reason: Why not as a graph, in one line; empty where it did.

    Raises:
        ValueError: If the optimizer is another one, or ``max_shapes`` is below 1.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: GroupedMeZO,
        loss: Loss,
        *,
        capture: bool | Literal["repeat"] = True,
        doubled: Mapping[str, str] | None = None,
        max_shapes: int = 16,
    ) -> None:
        if not isinstance(optimizer, GroupedMeZO):
            raise ValueError(f"this engine takes a GroupedMeZO, got {type(optimizer).__name__}; helene.engine.Engine")
        if max_shapes < 1:
            raise ValueError(f"max_shapes must be 1 or above, got {max_shapes!r}")
        self.model, self.optimizer, self.loss, self._max_shapes = model, optimizer, loss, max_shapes
        self._indices = None if doubled is None else dict(doubled)
        self._device = optimizer.targets[0].tensor.device
        self._repeat, self._refused = capture == "repeat", ""
        if not capture:
            self._refused = "capture=False"
        elif self._device.type != "cuda" and not self._repeat:
            self._refused = "no CUDA device"
        self.mode = self.reason = ""
        self._forget(optimizer.foresee())

    def step(self, batch: Any) -> Tensor:
        """One update; returns the mean of the losses, 0-dim.

        Args:
            batch: What ``loss`` takes: tensors in any nesting of dicts, lists and tuples, on any device.

        Raises:
            ValueError, FloatingPointError: As `GroupedMeZO.step`; nothing has then moved.
        """
        with on_device(self._device):
            return self._step(batches.plain(batch))

    @property
    def doubled(self) -> bool:
        """Whether one forward of the doubled batch gives both sides, as far as is known."""
        return self._indices is not None and self.optimizer.param_groups[0]["groups"] > 1

    def flush(self) -> None:
        """Nothing is under way between steps."""

    def _step(self, batch: Any) -> Tensor:
        optimizer: Any = self.optimizer
        layout = batches.Layout(batch)
        plan = optimizer.plan()
        if self._watches[0].changed() or self._watches[1].changed(plan):
            self._forget(plan)
        factors, probing = optimizer.factors(plan), plan.probing
        key = layout.key, factors, probing.eps
        shape, probe = self._shapes.get(key), optimizer.probe
        if shape is None or self._refused or shape.refused:
            self.mode, self.reason = "plain", self._refused or (shape.refused if shape else "a shape's first step")
            if shape is None:
                probe.look_again()
            loss = optimizer.step(lambda: self.loss(self.model, batch))
            self._keep(key)
            return loss
        if shape.recorded is None:
            self._record(shape, layout, plan, factors)
            if shape.refused:
                return self._step(batch)
        static, recorded, losses = shape.static, shape.recorded, shape.losses
        assert static is not None
        assert recorded is not None
        assert losses is not None
        static.fill(layout)
        self._keep(key)
        self.mode, self.reason = "graph", ""

        def replayed() -> Tensor:
            recorded.replay()
            return losses

        probe.recorded = replayed
        try:
            return optimizer.step(lambda: self.loss(self.model, batch))
        finally:
            probe.recorded = None

    def _keep(self, key: Any) -> None:
        self._shapes.setdefault(key, _Shape())
        self._shapes.move_to_end(key)
        if len(self._shapes) > self._max_shapes:
            self._shapes.popitem(last=False)

    def _forget(self, plan: StepPlan) -> None:
        self._shapes: OrderedDict[Any, _Shape] = OrderedDict()
        self._watches = ModelWatch(self.model), OptimizerWatch(self.optimizer, plan)
        self._pool: Any = None

    def _record(self, shape: _Shape, layout: batches.Layout, plan: StepPlan, factors: Factors) -> None:
        """Record both forwards of a shape, or note why that cannot be."""
        probing: Any = plan.probing
        probe: Any = self.optimizer.probe
        static, eps = batches.Static(layout, self._device), probing.eps

        def one_by_one() -> Tensor:
            factors.forget()  # copies in the dtype of products belong to the graph
            sides = [probe.losses(lambda: self.loss(self.model, static.batch), factors, side) for side in (eps, -eps)]
            factors.forget()
            return torch.stack(sides)

        of_both = probe.twin()  # so that what it notes stays its own

        def together() -> Tensor:
            factors.forget()
            batch = batches.twice(static.batch, self._indices or {})
            both: Tensor = of_both.losses(lambda: self.loss(self.model, batch), Mirrored(factors), eps)
            factors.forget()
            return both.view(2, -1)

        forwards = one_by_one
        if self.doubled:
            plain = one_by_one().flatten().tolist()
            try:
                check_agreement(self.model, plain, together().flatten().tolist())
                forwards = together
            except Exception as error:
                self._indices = None
                warnings.warn(f"each side has a forward of its own: {reasons.first_line(error)}", stacklevel=5)
        shape.static = static
        if self._repeat:
            shape.losses = forwards()
            shape.recorded = Repeated(_into(shape.losses, forwards))
            return
        here, graph = torch.cuda.current_stream(self._device), torch.cuda.CUDAGraph()
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        try:
            with capturing(graph, self._pool):
                losses = forwards()
            shape.recorded, shape.losses = graph, losses
        except RuntimeError as err:
            self._pool, shape.static = None, None
            give_up([graph], here)
            shape.refused = f"its forward cannot be captured: {reasons.first_line(err)}"


class _Shape:
    """What is known of a batch shape: the recorded forwards, what they read and write, why there are none."""

    def __init__(self) -> None:
        self.static: batches.Static | None = None
        self.recorded: Recorded | None = None
        self.losses: Tensor | None = None
        self.refused = ""


def _into(out: Tensor, make: Callable[[], Tensor]) -> Callable[[], None]:
    def again() -> None:
        out.copy_(make())

    return again
