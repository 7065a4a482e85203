"""Tensors that are computed from a batch, recorded once per batch shape and replayed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, ClassVar, Literal, TypedDict

import torch
from torch import Tensor, nn

from helene.engine.batches import MAX_SHAPES, Layout, Loss, Static, check_loss
from helene.engine.graphs import Recorded, Repeated, capturing, give_up
from helene.engine.reasons import first_line
from helene.inputs import numeric
from helene.steps.base import Base

Computed = tuple[Tensor, ...]
Compute = Callable[[], Computed]


class _Shape:
    """What is known of a batch shape: where its batches go, what was recorded and gives what, why nothing was.

    It keeps the buffers that a recording may read: the model may since have made others.
    """

    def __init__(self) -> None:
        self.static: Static | None = None
        self.recorded: Recorded | None = None
        self.computed: Computed = ()
        self.buffers: list[Tensor] = []
        self.refused = ""


class Recordings:
    """The recordings of all batch shapes; they share memory, so that each is read before the next is replayed.

    Args:
        device: Where batches go.
        capture: Whether to use CUDA graphs. "repeat" makes the calls anew in the place of a replay: for tests on a
            machine without a GPU.
        max_shapes: Shapes that are kept.
        model: Whose buffers recordings may read.

    Attributes:
        mode: How the last tensors were computed: "graph" or "plain".
        reason: Why not by a graph, in one line; empty where they were.

    Raises:
        ValueError: If ``max_shapes`` is below 1.
    """

    def __init__(
        self,
        device: torch.device,
        capture: bool | Literal["repeat"],
        max_shapes: int,
        model: nn.Module,
    ) -> None:
        numeric.whole(max_shapes, "max_shapes", 1, 1 << 62, f"{MAX_SHAPES} is usual")
        self._device, self._repeat, self._max_shapes = device, capture == "repeat", max_shapes
        self._model = model
        self._refused = self.mode = self.reason = ""
        if not capture:
            self._refused = "capture=False"
        elif device.type != "cuda" and not self._repeat:
            self._refused = "no CUDA device"
        self.forget()

    def forget(self) -> None:
        """Give all recordings up."""
        self._shapes: OrderedDict[Any, _Shape] = OrderedDict()
        self._pool: Any = None

    def compute(self, key: Any, layout: Layout, prepare: Callable[[Any], Compute]) -> Computed | None:
        """Tensors of a batch by a replay, overwritten by the next one; None where the caller is to compute them.

        That is so for the first batch of a shape, to be noted by `keep` once it went well, and where nothing can be
        recorded.

        Args:
            key: Of what a recording holds for: the batch's layout, and whatever else is other from call to call.
            layout: The batch.
            prepare: Given the batch at the addresses that a recording reads, makes what is recorded.
        """
        shape = self._shapes.get(key)
        if shape is not None and shape.recorded is None and not (shape.refused or self._refused):
            self._record(shape, layout, prepare)
        if shape is None or shape.recorded is None:
            self.mode = "plain"
            self.reason = self._refused or (shape.refused if shape is not None else "a shape's first step")
            return None
        self.keep(key)
        assert shape.static is not None
        shape.static.fill(layout)
        shape.recorded.replay()
        self.mode, self.reason = "graph", ""
        return shape.computed

    def again(self, key: Any) -> Computed:
        """What `compute` has just given, by another replay: what is read beside the batch may be other than before."""
        shape = self._shapes[key]
        assert shape.recorded is not None
        shape.recorded.replay()
        return shape.computed

    @property
    def is_empty(self) -> bool:
        """Whether nothing is recorded."""
        return all(shape.recorded is None for shape in self._shapes.values())

    def is_new(self, key: Any) -> bool:
        """Whether a shape has not been seen."""
        return key not in self._shapes

    def keep(self, key: Any) -> None:
        """Note a shape as the last one seen."""
        self._shapes.setdefault(key, _Shape())
        self._shapes.move_to_end(key)
        if len(self._shapes) > self._max_shapes:
            self._shapes.popitem(last=False)

    def _record(self, shape: _Shape, layout: Layout, prepare: Callable[[Any], Compute]) -> None:
        shape.static = Static(layout, self._device)
        shape.buffers = list(self._model.buffers())
        compute = prepare(shape.static.batch)
        if self._repeat:
            shape.recorded = Repeated(_into(shape, compute))
            return
        here, graph = torch.cuda.current_stream(self._device), torch.cuda.CUDAGraph()
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        try:
            with capturing(graph, self._pool):
                shape.computed = compute()
            shape.recorded = graph
        except BaseException as err:
            self._pool, shape.static = None, None
            give_up([graph], here)
            if not isinstance(err, RuntimeError):  # the loss's own, or an interrupt
                raise
            shape.refused = f"its forward cannot be captured: {first_line(err)}"


class RecordingOptions(TypedDict, total=False):
    """Keyword arguments of every `RecordingEngine`."""

    capture: bool | Literal["repeat"]
    max_shapes: int


class RecordingEngine:
    """Base of the engines that record what a step evaluates; ``optimizer.step`` makes the step from it.

    Args:
        model: The module whose forward the loss runs.
        optimizer: A `METHOD`.
        loss: As of the engine.
        capture: See `Recordings`.
        max_shapes: Likewise; each holds a recording for each block of parameters that is probed alone.

    Raises:
        ValueError: If the optimizer is another one, the loss takes other arguments, or ``max_shapes`` is below 1.
    """

    METHOD: ClassVar[type[Base]]

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any,
        loss: Loss,
        *,
        capture: bool | Literal["repeat"] = True,
        max_shapes: int = MAX_SHAPES,
    ) -> None:
        if not isinstance(optimizer, self.METHOD):
            raise ValueError(f"this engine takes a {self.METHOD.__name__}, got {type(optimizer).__name__}")
        check_loss(loss)
        self.model, self.optimizer, self.loss = model, optimizer, loss
        optimizer.foresee()  # now it knows its blocks
        self._device, self._capture = optimizer.targets[0].tensor.device, capture
        self._max_shapes = max_shapes * optimizer.num_blocks
        self._recordings = self._more_recordings()

    def _more_recordings(self) -> Recordings:
        return Recordings(self._device, self._capture, self._max_shapes, self.model)

    @property
    def mode(self) -> str:
        """How what the last step evaluated was computed: "graph" or "plain"."""
        return self._recordings.mode

    @property
    def reason(self) -> str:
        """Why not by a graph, in one line; empty where it was."""
        return self._recordings.reason

    def flush(self) -> None:
        """Nothing is under way between steps."""


def _into(shape: _Shape, compute: Compute) -> Callable[[], None]:
    def again() -> None:
        made = compute()
        if not shape.computed:
            shape.computed = made
            return
        for mine, new in zip(shape.computed, made, strict=True):
            mine.copy_(new)

    return again
