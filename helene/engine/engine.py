"""`Engine(model, optimizer, loss).step(batch)`: a whole step as one CUDA graph, or the same step without one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from torch import Tensor, nn

from helene.engine import batches, reasons
from helene.engine.batches import Loss, on_device
from helene.engine.gradients import Gradients
from helene.engine.pairs.lanes import Worker
from helene.engine.pairs.schedule import UNIT_BYTES, Schedule
from helene.engine.pairs.shared import Shared
from helene.engine.pairs.steps import Steps
from helene.engine.pairs.streams import Streams
from helene.engine.pairs.updates import Updates
from helene.engine.ranks import Ranks
from helene.engine.recordings import Recordings
from helene.evaluation.compiled import Compiled
from helene.evaluation.swap import out_of_inference
from helene.inputs import numeric
from helene.steps.plan import StepPlan
from helene.steps.zeroth import ZerothOrder


class Engine:
    r"""Steps of a zeroth-order optimizer, captured once per batch shape and replayed.

    Same trajectory as ``optimizer.step(lambda: loss(model, batch))``, up to the rounding of forwards that the GPU
    computes in another order. What it adds: both probes advance together, unit by unit, so that a unit's z is drawn
    once and its perturbed copies live in a small ring of scratch memory, written on a stream of their own while the
    units before are computed; of an embedding only the rows that the batch looks up are perturbed; the update is one
    kernel; seed, step and hyper-parameters are read from device memory, and the host waits for nothing.

    The first step of a batch shape runs without a graph (it finds the order in which modules run, and checks that every
    trained parameter is read perturbed), the second is captured, later ones are replayed. Without a GPU or Triton, or
    where a forward cannot be captured, steps run without a graph; `mode` and `reason` tell. A step that estimates h by
    a backward or from a minibatch of its own has its update outside of the graph; a backward of the step's batch is a
    graph too.

    With torch.distributed initialised (torchrun), each rank gives its share of the batch, all of one size, and ``loss``
    its mean; two numbers are exchanged a pair of forwards.

    Args:
        model: The module whose forward the loss runs. Its parameters stay where they are.
        optimizer: A zeroth-order optimizer of `helene` over its parameters, or some of them.
        loss: ``loss(model, batch)`` gives the scalar loss of a batch, by default ``model(**batch).loss``. It must give
            the same value at the same point: no dropout.
        capture: Whether to use CUDA graphs. "repeat" goes the way of captured steps, with the calls themselves in the
            place of a graph: for tests on a machine without a GPU.
        compile: Whether captured forwards run the model's repeated blocks (the layers of a transformer) compiled by
            ``torch.compile``. It takes seconds, once for all shapes, and pays where small kernels bound a forward. Each
            block is then copied as one, so that the ring holds a block. Where compiling fails, or changes a loss by
            more than rounding, forwards are captured as they are, with a warning.
        concurrent: Whether the two forwards may share the GPU at one time: faster where a batch does not fill it. Their
            activations are then held at the same time, but for what follows a layer too large for the ring.
        scratch_bytes: Size of the ring, by default a few of the largest layers.
        unit_bytes: Bound on how much is copied by one launch, unless a single module has more.
        buckets: Lengths to pad batches to, so that few shapes occur; without them each shape is captured.
        padding: Value to pad with by the name of the batch's entry; the usual names of language models are known.
        padding_side: "right" or "left".
        group: Process group of torch.distributed, the default one unless given.
        check_every: Steps between checks that all ranks hold the same parameters.
        max_shapes: Shapes whose captured steps are kept.

    Raises:
        ValueError: If the optimizer is none of helene's zeroth-order ones, the loss does not take a model and a
            batch, or an argument is out of range.
        RuntimeError: If ranks start from different parameters or seeds.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: ZerothOrder,
        loss: Loss | None = None,
        *,
        capture: bool | Literal["repeat"] = True,
        compile: bool = False,
        concurrent: bool = True,
        scratch_bytes: int | None = None,
        unit_bytes: int = UNIT_BYTES,
        buckets: Sequence[int] | None = None,
        padding: Mapping[str, int] | None = None,
        padding_side: str = "right",
        group: Any = None,
        check_every: int = 1000,
        max_shapes: int = batches.MAX_SHAPES,
    ) -> None:
        if not isinstance(optimizer, ZerothOrder):
            raise ValueError(
                f"the engine takes a zeroth-order optimizer of helene, got {type(optimizer).__name__}; "
                f"{reasons.GRADIENTS} takes the first-order ones of helene"
            )
        if padding_side not in ("left", "right"):
            raise ValueError(f"padding_side must be left or right, got {padding_side!r}")
        for name, value, usual in (
            ("max_shapes", max_shapes, batches.MAX_SHAPES),
            ("unit_bytes", unit_bytes, "some megabytes"),
        ):
            numeric.whole(value, name, 1, 1 << 62, f"{usual} is usual")
        self.model, self.optimizer, self._capture, self._compile = model, optimizer, capture, compile
        self._options = {"unit_bytes": unit_bytes, "ring_bytes": scratch_bytes}
        self._buckets, self._side = sorted(buckets or ()), padding_side
        self._padding = {**batches.PADDING, **(padding or {})}
        self._max_shapes = max_shapes
        self.ranks = Ranks(group, check_every)
        self._workers = Worker(), Worker()
        self._streams = Streams(optimizer.targets[0].tensor.device, concurrent)
        self._told: set[str] = set()
        self._mode = self._reason = self._plain_reason = ""
        self._loss = _default_loss if loss is None else loss
        batches.check_loss(self._loss)
        device = optimizer.targets[0].tensor.device
        self._gradients = Gradients(model, self._loss, device, Recordings(device, capture, max_shapes, model))
        self._shared: Shared
        self._steps: Steps
        plan = optimizer.foresee()
        self._look(plan)
        self.ranks.check_step(self.optimizer, plan)
        optimizer.register_state_dict_pre_hook(lambda *_: self._shared.updates.settle())

    @property
    def loss(self) -> Loss:
        """What gives the loss of a batch. Another one is taken from the next step on that runs Python."""
        return self._loss

    @loss.setter
    def loss(self, loss: Loss) -> None:
        batches.check_loss(loss)
        self._loss = self._shared.loss = self._gradients.loss = loss

    @property
    def mode(self) -> str:
        """How the last step ran: "graph", "eager" (both probes together, no graph) or "plain" (``optimizer.step``)."""
        return self._mode

    @property
    def reason(self) -> str:
        """Why the last step did not run as one graph, in one line; empty where it did."""
        return self._reason

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch memory held."""
        return max((schedule.scratch_bytes for schedule in self.schedules), default=0)

    @property
    def fused(self) -> bool:
        """Whether the Triton kernels write the copies."""
        return self._shared.fused

    @property
    def compiled(self) -> bool:
        """Whether captured forwards run compiled blocks."""
        return self._shared.compiled is not None and bool(self._shared.compiled.blocks)

    @property
    def schedules(self) -> list[Schedule]:
        """When what is copied, of each batch shape seen, the latest last."""
        return [shape.schedule for shape in self._steps.shapes.values() if shape.schedule is not None]

    @property
    def plain_reason(self) -> str:
        """Why no step at all is made by the engine, in one line; empty where it makes them."""
        return self._plain_reason

    def step(self, batch: Any, curvature_closure: Callable[[], Tensor] | None = None) -> Tensor:
        """One update.

        Args:
            batch: What ``loss`` takes: tensors in any nesting of dicts, lists and tuples, on any device.
            curvature_closure: As of ``optimizer.step``.

        Returns:
            (L⁺ + L⁻) / 2, 0-dim; reading its value is what makes the host wait.

        Raises:
            ValueError: If the loss is no scalar or draws random numbers, a parameter cannot be perturbed, or the
                curvature's source needs a ``curvature_closure`` and there is none.
            FloatingPointError: If a loss is not finite; parameters and state are unchanged. After a captured step the
                error comes with one of the next, and steps in between count; of several ranks it comes with `flush`, or
                a step that is a multiple of 1,024.
            RuntimeError: If ranks differ or one has died.
        """
        with on_device(self._shared.device), out_of_inference():
            return self._step(batch, curvature_closure)

    def _step(self, batch: Any, curvature_closure: Callable[[], Tensor] | None) -> Tensor:
        updates = self._shared.updates
        if self.ranks.size == 1:  # others may not know yet, and would wait for this one
            updates.raise_if_broken()
        plan = self.optimizer.plan()
        self.optimizer.begin(plan)
        if self._steps.changed(plan):
            updates.settle()
            self._look(plan)
            self._shared.updates.follow(updates)
        self.ranks.check_at(self.optimizer, plan)
        batch = batches.plain(batch)
        if self._buckets:
            batch = batches.pad_to_bucket(batch, self._buckets, self._padding, self._side)
        if self._plain_reason:
            return self._plain(batch, curvature_closure)
        self.optimizer.check_source(curvature_closure)
        of_source = curvature_closure or self._gradients.of(batch)
        loss, self._mode, self._reason = self._steps.make(plan, batches.Layout(batch), of_source)
        return loss

    def flush(self) -> None:
        """Bring the optimizer's statistics and trajectory up to date, and wait.

        Raises:
            FloatingPointError: If a loss was not finite.
        """
        self._shared.updates.flush()

    def _look(self, plan: StepPlan) -> None:
        """Look at model and optimizer anew, forgetting all shapes."""
        optimizer, targets = self.optimizer, self.optimizer.targets
        device = targets[0].tensor.device
        self._mode, self._reason = "eager", ""
        slow = reasons.not_fused(targets)
        self._plain_reason = reasons.plain(self.model, plan)
        if self.ranks.size > 1 and (reason := self._plain_reason or reasons.apart(plan, ever=True)):
            raise ValueError(f"several ranks need steps of pairs of losses, but {reason}")
        no_graph = "no CUDA device" if device.type != "cuda" else slow
        if not self._capture:
            no_graph = "capture=False"
        repeat = self._capture == "repeat"
        self._shared = Shared(
            model=self.model,
            loss=self._loss,
            targets=targets,
            fused=not slow,
            updates=Updates(optimizer, slow),
            streams=self._streams,
            workers=self._workers,
            options=self._options,
            compiled=Compiled(self.model) if self._compile and (repeat or not no_graph) else None,
        )
        self._steps = Steps(
            self._shared,
            optimizer,
            plan,
            ranks=self.ranks,
            no_graph="" if repeat else no_graph,
            repeat=repeat,
            max_shapes=self._max_shapes,
            tell=self._tell,
        )
        if self._plain_reason:
            self._tell(f"steps are made by optimizer.step: {self._plain_reason}")
        elif no_graph and not repeat:
            self._tell(f"steps run without a CUDA graph: {no_graph}")

    def _plain(self, batch: Any, curvature_closure: Callable[[], Tensor] | None) -> Tensor:
        self._shared.updates.settle()
        self._mode, self._reason = "plain", self._plain_reason
        return self.optimizer.step(lambda: self._loss(self.model, batch), curvature_closure)

    def _tell(self, message: str) -> None:
        if message not in self._told:
            self._told.add(message)
            warnings.warn(message, stacklevel=4)


def _default_loss(model: nn.Module, batch: Any) -> Any:
    return model(**batch).loss
