"""Steps of `FZOO` whose losses are replays of one CUDA graph of the forward; the update runs as it does without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from helene import kernels
from helene.engine import batches, reasons
from helene.engine.batches import Loss, on_device
from helene.engine.recordings import Compute, RecordingEngine, RecordingOptions
from helene.engine.watch import ModelWatch, OptimizerWatch
from helene.evaluation.blocks import Block, aligned
from helene.evaluation.directions import Direction, Target
from helene.evaluation.undo import Undo
from helene.optimizers.fzoo import FZOO, Evaluated
from helene.steps.plan import StepPlan


class SpreadEngine(RecordingEngine):
    """Steps of an `FZOO`, whose forward is captured once per batch shape and replayed for each of its N + 1 losses.

    Same trajectory as ``optimizer.step(lambda: loss(model, batch))``, up to the rounding of forwards. The graph reads
    copies of all trained parameters that stay where they are, since a probe's own move from block to block. Before each
    replay theta, or theta + eps z, is written there; theta is only read. The first step of a shape runs without a
    graph, and so do steps 1, 2, 4, 8, ... , which look whether the loss draws random numbers. Without a GPU, or where
    the forward cannot be captured, steps run without a graph; `mode` and `reason` tell.

    Memory: the bytes of all trained parameters, and what a forward holds.

    Args:
        model: The module whose forward the loss runs.
        optimizer: Over its parameters, or some of them.
        loss: ``loss(model, batch)`` gives the loss of a batch.
        capture: See `helene.engine.recordings.Recordings`.
        max_shapes: Likewise.

    Raises:
        ValueError: If the optimizer is another one, or ``max_shapes`` is below 1.
    """

    METHOD = FZOO

    def __init__(self, model: nn.Module, optimizer: FZOO, loss: Loss, **options: Unpack[RecordingOptions]) -> None:
        super().__init__(model, optimizer, loss, **options)
        self.optimizer: FZOO = optimizer
        self._model_watch = ModelWatch(model)
        self._forget(optimizer.foresee())

    def step(self, batch: Any) -> Tensor:
        """One update; returns the loss, 0-dim.

        Args:
            batch: What ``loss`` takes: tensors in any nesting of dicts, lists and tuples, on any device.

        Raises:
            ValueError, FloatingPointError: As ``optimizer.step``; nothing has then moved.
        """
        batch, plan, recordings = batches.plain(batch), self.optimizer.plan(), self._recordings
        layout = batches.Layout(batch)
        if self._model_watch.changed() or self._optimizer_watch.changed(plan):
            self._forget(plan)
        recordings.mode, recordings.reason = "plain", self._refused or "this step looks whether the loss draws"

        def evaluated() -> Any:
            return self.loss(self.model, batches.moved(batch, self._device))

        with on_device(self._device):
            loss = self.optimizer.step(Evaluated(evaluated, lambda *along: self._losses(layout, *along)))
        if recordings.mode == "plain":
            self._model_watch.look()
        recordings.keep(layout.key)
        return loss

    def _forget(self, plan: StepPlan) -> None:
        self._recordings.forget()
        self._copies: _Copies | None = None
        self._refused = reasons.not_whole(self.model)
        self._model_watch.look()
        self._optimizer_watch = OptimizerWatch(self.optimizer, plan)

    def _losses(self, layout: batches.Layout, directions: Sequence[Direction], eps: float) -> list[Tensor] | None:
        if self._refused:
            return None
        if self._copies is not None:
            self._copies.write_theta()
        computed = self._recordings.compute(layout.key, layout, self._forward)
        if computed is None:
            if self._recordings.is_empty:
                self._copies = None  # the forward cannot be captured
            return None
        assert self._copies is not None
        losses = [computed[0].clone()]
        for direction in directions:
            self._copies.write(direction, eps)
            losses.append(self._recordings.again(layout.key)[0].clone())
        return losses

    def _forward(self, batch: Any) -> Compute:
        if self._copies is None:
            self._copies = _Copies(self.optimizer.targets)
        copies = self._copies

        def compute() -> tuple[Tensor]:
            undo = Undo()
            try:
                try:
                    undo.note(torch.clear_autocast_cache)  # it may hold copies that were cast
                    copies.point_at(undo)
                    loss = self.optimizer.loss_here(lambda: self.loss(self.model, batch))
                finally:
                    undo.run()
            finally:
                undo.run()
            self._model_watch.look()
            return (loss,)

        return compute


class _Copies:
    """Copies of parameters of one device, all at once, in memory that stays; of theta itself at first."""

    def __init__(self, targets: Sequence[Target]) -> None:
        self._targets, device = targets, targets[0].tensor.device
        thetas = {i: target.tensor.detach() for i, target in enumerate(targets)}
        offsets, size = {}, 0
        for i, theta in thetas.items():
            offsets[i] = size
            size += aligned(theta.nbytes)
        memory = torch.empty(size, dtype=torch.uint8, device=device)
        self._block = Block(dict(enumerate(targets)), thetas, offsets, {1: memory, -1: memory})
        self._control = None
        if any(map(kernels.has_kernel, thetas.values())):
            from helene.kernels.control import Control

            self._control = Control(device)
        self.write_theta()

    def write_theta(self) -> None:
        """Have theta here."""
        torch._foreach_copy_(list(self._block.views[1].values()), list(self._block.thetas.values()))

    def write(self, direction: Direction, eps: float) -> None:
        """Have theta + eps z here."""
        if self._control is not None:
            self._control.send(direction[:3], eps)
        self._block.write((1,), direction, eps, self._control)

    def point_at(self, undo: Undo) -> None:
        """Have the parameters be these, until it is undone."""
        undo.note(partial(self._point, self._block.thetas))
        self._point(self._block.views[1])

    def _point(self, tensors: Mapping[int, Tensor]) -> None:
        for i, target in enumerate(self._targets):
            target.tensor.data = tensors[i]
