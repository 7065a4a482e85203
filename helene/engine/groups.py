"""Steps of `GroupedMeZO` whose forwards are one CUDA graph, replayed; the update runs as it does without."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, Unpack, cast

import torch
from torch import Tensor, nn

from helene.engine import batches, reasons
from helene.engine.batches import Loss, on_device
from helene.engine.ranks import GroupShare, Ranks
from helene.engine.recordings import Compute, RecordingEngine, RecordingOptions
from helene.engine.watch import ModelWatch, OptimizerWatch
from helene.evaluation.agreement import check_agreement
from helene.evaluation.grouped.factors import Factors, Mirrored
from helene.evaluation.swap import out_of_inference
from helene.optimizers.grouped import GroupedMeZO
from helene.steps.plan import StepPlan


class GroupEngine(RecordingEngine):
    """Steps of a `GroupedMeZO`, their two forwards captured once per batch shape and replayed.

    Same trajectory as ``optimizer.step(lambda: loss(model, batch))``, up to the rounding of forwards. The first step of
    a shape runs without a graph and looks at what is read, the second is captured. Directions are drawn before the
    replay, to where the graph reads them. Without a GPU, or where a forward cannot be captured, steps run without a
    graph; `mode` and `reason` tell.

    With ``doubled`` one forward of a batch that holds its examples twice gives both sides, in half as many launches.
    Where that raises, or its losses differ from two forwards' by more than rounding, there are two, with a warning.

    With torch.distributed initialised (torchrun), each rank gives its share of the batch, all of one size, and its
    examples see as large a share of the groups. Four numbers a group are exchanged a step. Every rank makes the same
    update, that of one process with all groups and the whole batch.

    Args:
        model: The module whose forward the loss runs. Its parameters stay where they are.
        optimizer: Over its parameters, or some of them.
        loss: ``loss(model, batch)`` gives the loss of each example, or of each group.
        capture: See `helene.engine.recordings.Recordings`.
        doubled: For batches that are dicts whose tensors all have examples, rows or the like on their first axis: which
            of them are indices, and into the first axis of which others, ``{}`` where none is. The rest is repeated.
        group: Process group of torch.distributed, the default one unless given.
        check_every: Steps between checks that all ranks hold the same parameters.
        max_shapes: As ``capture``.

    Raises:
        ValueError: If the optimizer is another one, ``max_shapes`` or ``check_every`` is below 1, or ranks cannot share
            its groups.
        RuntimeError: If ranks start from different parameters or seeds.
    """

    METHOD = GroupedMeZO

    def __init__(
        self,
        model: nn.Module,
        optimizer: GroupedMeZO,
        loss: Loss,
        *,
        doubled: Mapping[str, str] | None = None,
        group: Any = None,
        check_every: int = 1000,
        **options: Unpack[RecordingOptions],
    ) -> None:
        super().__init__(model, optimizer, loss, **options)
        self.optimizer: GroupedMeZO = optimizer
        self.ranks = Ranks(group, check_every)
        self._share: GroupShare | None = None
        self._indices = None if doubled is None else dict(doubled)
        self._model_watch = ModelWatch(model)
        plan = optimizer.foresee()
        if self.ranks.size > 1:
            if optimizer.chooses:
                raise ValueError(f"groups='auto' may be none that {self.ranks.size} ranks can share; give a number")
            self._share = GroupShare(self.ranks, self._device)
            self._share.part(optimizer.factors(plan))
            self.ranks.check_step(optimizer, plan)
        self._forget(plan)

    def step(self, batch: Any) -> Tensor:
        """One update; returns the mean of the losses, 0-dim.

        Args:
            batch: What ``loss`` takes: tensors in any nesting of dicts, lists and tuples, on any device.

        Raises:
            ValueError, FloatingPointError: As `GroupedMeZO.step`; nothing has then moved.
            RuntimeError: If ranks differ or one has died.
        """
        with on_device(self._device), out_of_inference():
            return self._step(batches.plain(batch))

    @property
    def doubled(self) -> bool:
        """Whether one forward of the doubled batch gives both sides, as far as is known."""
        return self._indices is not None and self.optimizer.param_groups[0]["groups"] > 1

    def _step(self, batch: Any) -> Tensor:
        optimizer: Any = self.optimizer
        layout, recordings = batches.Layout(batch), self._recordings
        plan = optimizer.plan()
        if self._model_watch.changed() or self._optimizer_watch.changed(plan):
            self._forget(plan)
        self.ranks.check_at(optimizer, plan)
        factors, probing, probe = optimizer.factors(plan), plan.probing, optimizer.probe
        key = layout.key, factors, probing.eps
        losses = recordings.compute(key, layout, lambda static: self._forwards(static, plan, factors))
        if losses is not None:
            probe.recorded = lambda: losses[0]
        elif recordings.is_new(key):
            probe.look_again()
        try:
            optimizer.share = self._share
            loss = optimizer.step(lambda: self.loss(self.model, batches.moved(batch, self._device)))
        finally:
            probe.recorded = optimizer.share = None
        if losses is None:
            self._model_watch.look()
        recordings.keep(key)
        return cast(Tensor, loss)

    def _forget(self, plan: StepPlan) -> None:
        self._recordings.forget()
        self._model_watch.look()
        self._optimizer_watch = OptimizerWatch(self.optimizer, plan)

    def _forwards(self, static: Any, plan: StepPlan, factors: Factors) -> Compute:
        """What computes the losses of both sides, shape (2, examples)."""
        probing: Any = plan.probing
        probe: Any = self.optimizer.probe
        eps = probing.eps
        if self._share is not None:
            factors = self._share.part(factors)

        def one_by_one() -> tuple[Tensor]:
            factors.forget()  # copies in the dtype of products belong to the graph
            sides = [probe.losses(lambda: self.loss(self.model, static), factors, side) for side in (eps, -eps)]
            factors.forget()
            self._model_watch.look()
            return (torch.stack(sides),)

        of_both = probe.twin()  # so that what it notes stays its own

        def together() -> tuple[Tensor]:
            factors.forget()
            batch = batches.twice(static, self._indices or {})
            both: Tensor = of_both.losses(lambda: self.loss(self.model, batch), Mirrored(factors), eps)
            factors.forget()
            self._model_watch.look()
            return (both.view(2, -1),)

        forwards = one_by_one
        if self.doubled:
            plain = one_by_one()[0].flatten().tolist()
            try:
                check_agreement(self.model, plain, together()[0].flatten().tolist())
                forwards = together
            except Exception as error:
                self._indices = None
                warnings.warn(f"each side has a forward of its own: {reasons.first_line(error)}", stacklevel=5)
        return forwards
