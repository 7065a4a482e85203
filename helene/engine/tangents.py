"""Steps of `ForwardGrad` whose forward, with its tangent, is one CUDA graph; the update runs as it does without."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from torch import Tensor, nn

from helene.engine import batches
from helene.engine.batches import Loss, on_device
from helene.engine.recordings import Compute, RecordingEngine, RecordingOptions
from helene.engine.watch import ModelWatch
from helene.evaluation.directions import Direction, Drawn, Target
from helene.optimizers.forward import ForwardGrad, Sloped, primal_and_tangent, tangents_of


class TangentEngine(RecordingEngine):
    """Steps of a `ForwardGrad`, the forward with its tangent captured once per batch shape and replayed.

    Same trajectory as ``optimizer.step(lambda: loss(model, batch))``, up to the rounding of forwards. The first step of
    a shape runs without a graph, and so do steps 1, 2, 4, 8, ... , which look whether the loss draws random numbers.
    The direction is drawn before the replay, to where the graph reads it. Without a GPU, or where the forward cannot be
    captured, steps run without a graph; `mode` and `reason` tell.

    Args:
        model: The module whose forward the loss runs. Its parameters stay where they are.
        optimizer: Over its parameters, or some of them.
        loss: ``loss(model, batch)`` gives the loss of a batch.
        capture: See `helene.engine.recordings.Recordings`.
        max_shapes: Likewise.

    Raises:
        ValueError: If the optimizer is another one, or ``max_shapes`` is below 1.
    """

    METHOD = ForwardGrad

    def __init__(
        self, model: nn.Module, optimizer: ForwardGrad, loss: Loss, **options: Unpack[RecordingOptions]
    ) -> None:
        super().__init__(model, optimizer, loss, **options)
        self._watch = ModelWatch(model)
        self._drawn: dict[Any, Drawn] = {}

    def step(self, batch: Any) -> Tensor:
        """One update; returns the loss, 0-dim.

        Args:
            batch: What ``loss`` takes: tensors in any nesting of dicts, lists and tuples, on any device.

        Raises:
            ValueError, FloatingPointError: As ``optimizer.step``; nothing has then moved.
        """
        batch = batches.plain(batch)
        self._recordings.mode, self._recordings.reason = "plain", "this step looks whether the loss draws"
        with on_device(self._device):
            return self.optimizer.step(Sloped(lambda: self._plain(batch), self._slope(batch)))

    def _plain(self, batch: Any) -> Any:
        return self.loss(self.model, batches.moved(batch, self._device))

    def _slope(self, batch: Any) -> Any:
        def slope(targets: Sequence[Target], direction: Direction, length: float) -> tuple[Tensor, Tensor]:
            if self._watch.changed():
                self._recordings.forget()
                self._drawn.clear()
            layout = batches.Layout(batch)
            owned = tuple(id(target.tensor) for target in targets)
            key = layout.key, owned
            if owned not in self._drawn:
                self._drawn[owned] = Drawn(targets, [t.tensor.numel() for t in targets], wide=True)
            drawn = self._drawn[owned]
            if not self._recordings.is_new(key):
                drawn.draw(direction, length)
            computed = self._recordings.compute(key, layout, lambda static: self._forward(static, targets, drawn))
            if computed is not None:
                return computed[0].clone(), computed[1]
            made = primal_and_tangent(lambda: self._plain(batch), targets, tangents_of(targets, direction, length))
            self._watch.look()
            self._recordings.keep(key)
            return made

        return slope

    def _forward(self, batch: Any, targets: Sequence[Target], drawn: Drawn) -> Compute:
        def compute() -> tuple[Tensor, Tensor]:
            parts = zip(drawn.parts, targets, strict=True)
            tangents = [part.view(t.tensor.shape).to(t.tensor.dtype) for part, t in parts]
            made = primal_and_tangent(lambda: self.loss(self.model, batch), targets, tangents)
            self._watch.look()
            return made

        return compute
