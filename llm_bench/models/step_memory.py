"""Bytes of a step before it runs, on a machine without the GPU.

The model's own forward (and backward) runs on the meta device, where tensors have shapes and no storage, and the life
of each is counted: what is allocated at once is then known exactly, whatever the model and the loss. Copies come from
the engine's schedule, state from the optimizer's. What a GPU adds is the workspace of its matrix library.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from helene.engine.pairs.schedule import Schedule, schedule_of, trace
from helene.engine.reasons import apart, not_pairs
from helene.evaluation.blocks import LEAST_BYTES, aligned
from helene.evaluation.directions import DEVICE_CHUNK, Target, compute_dtype
from helene.evaluation.modules import held_by
from helene.kernels.tiles import TILE
from helene.optimizers import FZOO
from helene.rules import precision, storage
from helene.steps.base import Base
from helene.steps.chunkwise import RoundingWatch
from helene.steps.first import FirstOrder
from helene.steps.fused.methods import Fused, fused
from llm_bench.models.live_bytes import blocks, counting, fused_attention
from llm_bench.models.tuning import trained

WORKSPACE_BYTES = 32 << 20  # of cuBLAS on Hopper, for each thread and stream that multiplies; 8 MiB before
Loss = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Prediction:
    """Peak bytes of a step by what holds them.

    Attributes:
        weights: Parameters, buffers and the batch.
        state: Of the optimizer.
        scratch: Perturbed copies, and the tables of the kernels that write them.
        gradients: Where there is a backward.
        activations: Most that forwards, backward or an update hold at once beside all this.
        workspace: Of the matrix library.
    """

    weights: int = 0
    state: int = 0
    scratch: int = 0
    gradients: int = 0
    activations: int = 0
    workspace: int = 0

    @property
    def total(self) -> int:
        """The peak."""
        return self.weights + self.state + self.scratch + self.gradients + self.activations + self.workspace

    def beside(self, graph: Prediction) -> Prediction:
        """Of what some steps do beside captured forwards: a graph keeps its scratch and its activations."""
        kept = {"scratch", "activations"}
        mine, theirs = self.__dict__, graph.__dict__
        return Prediction(**{n: (mine[n] + theirs[n] if n in kept else max(mine[n], theirs[n])) for n in mine})

    def summary(self) -> dict[str, int]:
        """For records."""
        return {**self.__dict__, "total": self.total}


def predict(
    module: nn.Module,
    loss: Loss,
    batch: Any,
    optimizer: Callable[[list[nn.Parameter]], Base] | None,
    *,
    engine: bool = True,
    workspace_bytes: int = WORKSPACE_BYTES,
) -> Prediction:
    """Peak bytes of steps of a model.

    Args:
        module: On the meta device; parameters that require gradients are trained.
        loss: Gives the loss of module and batch.
        batch: On the meta device.
        optimizer: Makes the optimizer of given parameters (it is shown one of one element); None for one forward.
        engine: Whether it runs in `helene.engine`, where that has its steps.
        workspace_bytes: Of the matrix library for each thread and stream.
    """
    tensors = [*module.parameters(), *module.buffers(), *(x for x in tree_leaves(batch) if isinstance(x, Tensor))]
    unique = {id(t.untyped_storage()): t.untyped_storage().nbytes() for t in tensors}
    weights = sum(blocks(size) for size in unique.values())
    targets = [Target(p, i, name) for i, (name, p) in enumerate(trained(module))]

    def run() -> Any:
        return loss(module, batch)

    if optimizer is None:
        return Prediction(weights, activations=_forward_peak(run, tensors), workspace=workspace_bytes)
    like = optimizer([nn.Parameter(torch.zeros(1, dtype=targets[0].tensor.dtype))])
    state, update = _state_bytes(like, targets), _update_peak(like, targets)
    first_order = isinstance(like, FirstOrder)
    backwards = first_order + like.source.has_backward  # whose gradients a step holds at once

    def plain() -> Prediction:
        scratch = 0 if first_order else _stack_bytes(module, targets, run)
        if backwards:
            peak, gradient = _backward_peak(run, tensors, targets)
            held = max(peak - gradient, update)
            return Prediction(weights, state, scratch, backwards * gradient, held, 2 * workspace_bytes)
        held = max(_forward_peak(run, tensors), update)
        return Prediction(weights, state, scratch, 0, held, workspace_bytes)

    # The caller's batch beside the engine's copy of it.
    copied = sum(blocks(x.nbytes) for x in tree_leaves(batch) if isinstance(x, Tensor))

    def by_graph() -> Prediction:
        """Each gradient is kept, and its graph makes another one."""
        peak, gradient = _backward_peak(run, tensors, targets)
        held = max(backwards * peak, update)
        return Prediction(weights + copied, state, 0, backwards * gradient, held, 2 * workspace_bytes)

    def captured() -> Prediction:
        schedule, held = _engine_peak(module, targets, run, tensors)
        tables = 2 * sum(4 * -(-t.tensor.numel() // TILE) for t in targets)  # of the copies and of the update
        # The trace's, each lane's, a lane's on the other's stream.
        used = 3 + any(not unit.together for unit in schedule.units)
        scratch = blocks(schedule.scratch_bytes) + tables
        return Prediction(weights + copied, state, scratch, 0, max(held, update), used * workspace_bytes)

    def by_copies() -> Prediction:
        """A graph of one forward, which reads copies of all trained parameters."""
        copies = blocks(sum(aligned(t.tensor.nbytes) for t in targets))
        return Prediction(weights + copied, state, copies, 0, _forward_peak(run, tensors), 2 * workspace_bytes)

    if engine and first_order:
        return by_graph()
    if engine and isinstance(like, FZOO):
        return plain().beside(by_copies())
    if not engine or not_pairs(like.plan()):
        return plain()
    if apart(like.plan(), ever=True):
        return (by_graph() if like.source.has_backward else plain()).beside(captured())
    return captured()


def _state_bytes(like: Base, targets: list[Target]) -> int:
    dtype = like.plan().storage[0].state_dtype
    wide = (compute_dtype(t.tensor.dtype).itemsize for t in targets)
    sizes = [blocks(precision.state_bytes(t.tensor.numel(), dtype, w)) for t, w in zip(targets, wide, strict=True)]
    return len(like.state_names) * sum(sizes)


def _forward_peak(run: Callable[[], Any], tensors: list[Tensor]) -> int:
    with torch.no_grad(), counting(tensors) as live:
        run()
    return live.peak


def _backward_peak(run: Callable[[], Any], tensors: list[Tensor], targets: list[Target]) -> tuple[int, int]:
    """Most bytes of a forward and a backward, the gradients included; bytes of these."""
    with counting(tensors) as live, torch.enable_grad():
        value = run()
        found = torch.autograd.grad(value, [t.tensor for t in targets], allow_unused=True)
    del value, found
    return live.peak, sum(blocks(t.tensor.nbytes) for t in targets)


def _update_peak(like: Base, targets: list[Target]) -> int:
    """Most bytes that an update holds for itself where no kernel does without: `chunkwise.Moves`, twice round.

    The last of what a turn has made lives until the next one's takes its name.
    """
    plan = like.plan()
    plan = plan.with_floors(dict.fromkeys(range(len(plan.rules)), 1.0)) if plan.asks_floors else plan
    if isinstance(fused(plan, like.targets), Fused):
        return 0
    rule, way = plan.rules[0], plan.storage[0]
    p = max((t.tensor for t in targets), key=lambda tensor: tensor.numel()).detach()
    theta, span = p.reshape(-1)[:DEVICE_CHUNK], slice(0, min(DEVICE_CHUNK, p.numel()))
    wide = compute_dtype(p.dtype)
    stored: dict[str, Tensor] = {}
    for name in rule.kept:
        stored |= storage.allocate(theta, rule, name, way.state_dtype)
    words = torch.empty(theta.numel(), dtype=torch.int32, device=p.device)
    watch = RoundingWatch()

    def turn() -> list[tuple[Tensor, Tensor]]:
        old = theta.to(wide)
        g = theta.to(wide) if isinstance(like, FirstOrder) else torch.empty_like(theta, dtype=wide)
        state = storage.read_all(stored, rule, span, wide)
        new, moved = rule.update(1, old, g, state, g * g if "curvature" in rule.kept else None)
        writes = []
        for name in like.state_names:
            value = getattr(moved, name)
            if value is not getattr(state, name):
                writes += storage.writes(stored, name, span, value, words if storage.is_rounded(stored, name) else None)
        if p.dtype != wide:
            wanted, new = new, new.to(p.dtype)
            watch.note(old, wanted, new)
        return [*writes, (theta, new)]

    with torch.no_grad(), counting([theta, words, *stored.values()]) as live:
        for _ in range(2):
            for sink, value in turn():
                sink.copy_(value)
    return live.peak


def _stack_bytes(module: nn.Module, targets: list[Target], run: Callable[[], Any]) -> int:
    """Scratch memory of `helene.evaluation.probe.Probe`: copies of the modules that are nested at one time."""
    top = peak = 0
    marks: list[int] = []
    handles = []
    sizes = [aligned(t.tensor.nbytes) for t in targets]
    for owner, owned in held_by(targets, module).items():
        size = sum(sizes[i] for i in owned)

        def before(*_: Any, size: int = size) -> None:
            nonlocal top, peak
            marks.append(top)
            top += size
            peak = max(peak, top)

        def after(*_: Any) -> None:
            nonlocal top
            top = marks.pop()

        handles += [owner.register_forward_pre_hook(before, prepend=True), owner.register_forward_hook(after)]
    try:
        with torch.no_grad(), fused_attention():
            run()
    finally:
        for handle in handles:
            handle.remove()
    return blocks(max(peak, min(sum(sizes), LEAST_BYTES)))


def _engine_peak(
    module: nn.Module, targets: list[Target], run: Callable[[], Any], tensors: list[Tensor]
) -> tuple[Schedule, int]:
    """The engine's schedule, and most bytes that its two forwards hold.

    They advance in turns, unit by unit, so a forward at work stands beside what the other holds where it waits; that
    is the same on every run.
    """
    with fused_attention():
        calls = trace(module, targets, run, lambda w: isinstance(w, Tensor) and w.dim() == 2 and w.shape[1] % 4 == 0)
    schedule = schedule_of(targets, calls)
    starts = {unit.first for unit in schedule.units}
    held, peaks, position = [0], [], 0
    with torch.no_grad(), counting(tensors) as live:

        def before(*_: Any) -> None:
            nonlocal position
            if position in starts:
                peaks.append(live.peak)
                held.append(live.live)
                live.peak = live.live
            position += 1

        handles = [m.register_forward_pre_hook(before, prepend=True) for m in {call.module for call in schedule.calls}]
        try:
            kept = run()
        finally:
            for handle in handles:
                handle.remove()
        peaks.append(live.peak)
        held.append(live.live)
    del kept
    return schedule, max(peak + max(held[s], held[s + 1]) for s, peak in enumerate(peaks))
