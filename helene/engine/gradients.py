"""Gradients by a CUDA graph of forward and backward, and first-order steps with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from helene.engine import batches
from helene.engine.batches import Loss, on_device
from helene.engine.recordings import Compute, RecordingEngine, RecordingOptions, Recordings
from helene.engine.watch import ModelWatch
from helene.evaluation.curvature import Differentiated, KeptGradient, all_finite, mean_gradient
from helene.evaluation.losses import Closure, as_loss
from helene.steps.first import FirstOrder


class Gradients:
    """The gradient of a batch's loss, forward and backward captured once per batch shape and replayed.

    The first batch of a shape runs without a graph, the second is captured. Memory: the gradient, which is kept, and
    what a forward and backward hold.

    Args:
        model: The module whose forward the loss runs.
        loss: ``loss(model, batch)`` gives the mean loss of a batch.
        device: Of the parameters.
        recordings: Its own, that hold the graphs.

    Attributes:
        recordings: The graphs.
    """

    def __init__(self, model: nn.Module, loss: Loss, device: torch.device, recordings: Recordings) -> None:
        self.model, self.loss, self._device, self.recordings = model, loss, device, recordings
        self._watch = ModelWatch(model)
        self._kept: list[Tensor] = []

    def of(self, batch: Any) -> Differentiated:
        """The loss of a batch as a closure that knows its gradient."""
        return Differentiated(lambda: self._plain(batch), lambda params: self._gradient(batch, params))

    def _plain(self, batch: Any) -> Any:
        return self.loss(self.model, batches.moved(batch, self._device))

    def _gradient(self, batch: Any, params: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
        if self._watch.changed():
            self.recordings.forget()
        layout = batches.Layout(batch)
        if any(isinstance(x, Tensor) and x.requires_grad for x in layout.leaves):
            self.recordings.mode, self.recordings.reason = "plain", "the batch has a graph of its own"
            return mean_gradient(lambda: self._plain(batch), params)
        key = layout.key, tuple(map(id, params))
        computed = self.recordings.compute(key, layout, lambda static: self._backward(static, params))
        if computed is not None and computed[1]:
            return KeptGradient(computed[2:]), computed[0].clone()
        found = mean_gradient(lambda: self._plain(batch), params)  # or its error
        self._watch.look()
        self.recordings.keep(key)
        return found

    def _backward(self, batch: Any, params: Sequence[Tensor]) -> Compute:
        """What computes the loss, whether all is finite, and the gradient in memory that all shapes share."""
        if [(x.shape, x.dtype) for x in self._kept] != [(p.shape, p.dtype) for p in params]:
            self._kept = [torch.empty_like(p, memory_format=torch.contiguous_format) for p in params]
        memory = self._kept

        def compute() -> tuple[Tensor, ...]:
            with torch.enable_grad():
                loss = self.loss(self.model, batch)
                found = torch.autograd.grad(loss, list(params), allow_unused=True)
            self._watch.look()
            value = as_loss(loss)
            for kept, gradient in zip(memory, found, strict=True):
                if gradient is None:
                    kept.zero_()
                elif gradient.numel():
                    kept.copy_(gradient)
            return value, value.isfinite() & all_finite(memory), *memory

        return compute


class GradientEngine(RecordingEngine):
    """Steps of a first-order method of `helene`: forward and backward are one CUDA graph, kernels update after it.

    Same trajectory as ``optimizer.step(lambda: loss(model, batch))``, up to rounding. After a replay the update is one
    kernel a kind of parameter, where `helene.steps.fused` has one and Triton is there. Without a GPU, or where forward
    and backward cannot be captured, steps run without a graph; `mode` and `reason` tell.

    Args:
        model: The module whose forward the loss runs.
        optimizer: Over its parameters, or some of them.
        loss: ``loss(model, batch)`` gives the mean loss of a batch.
        capture: See `helene.engine.recordings.Recordings`.
        max_shapes: Likewise.

    Raises:
        ValueError: If the optimizer is another one, or ``max_shapes`` is below 1.
    """

    METHOD = FirstOrder

    def __init__(
        self, model: nn.Module, optimizer: FirstOrder, loss: Loss, **options: Unpack[RecordingOptions]
    ) -> None:
        super().__init__(model, optimizer, loss, **options)
        self._gradients = Gradients(model, loss, self._device, self._recordings)
        self._of_source = Gradients(model, loss, self._device, self._more_recordings())

    def step(self, batch: Any, curvature_closure: Closure | None = None) -> Tensor:
        """One update; returns the loss, 0-dim.

        Args:
            batch: What ``loss`` takes: tensors in any nesting of dicts, lists and tuples, on any device.
            curvature_closure: As of ``optimizer.step``.

        Raises:
            ValueError, FloatingPointError: As ``optimizer.step``; nothing has then moved.
        """
        batch = batches.plain(batch)
        if curvature_closure is None and not self.optimizer.source.needs_closure:
            curvature_closure = self._of_source.of(batch)
        with on_device(self._device):
            return self.optimizer.step(self._gradients.of(batch), curvature_closure)
