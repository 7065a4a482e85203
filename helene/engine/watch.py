"""What could make a captured step wrong without a sign: a changed model or optimizer, forwards that disturb."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from helene.engine.lanes import Lane
from helene.engine.pair import Pair
from helene.optimizers.zeroth import ZerothOrder
from helene.plan import StepPlan

_ADAPTERS = ("merged_adapters", "_active_adapter", "_disable_adapters", "scaling")  # of peft's layers


class ModelWatch:
    """Notices that modules, parameters, buffers or hooks are replaced, modes switched, adapters merged or turned off.

    A graph replays what it saw, at the addresses it saw. This is asked at every step, so what can be looked up once is.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = list(model.modules())
        self._children = [m._modules for m in self._modules if m._modules]
        held = [(m._parameters, m._buffers) for m in self._modules]
        self._held = [d for pair in held for d in pair if d]
        self._hooks = [(m._forward_hooks, m._forward_pre_hooks) for m in self._modules]
        self._adapters = [m.__dict__ for m in self._modules if "merged_adapters" in m.__dict__]
        self._seen = self._now()

    def changed(self) -> bool:
        """Whether anything is other than when this was made."""
        return self._now() != self._seen

    def _now(self) -> tuple[Any, ...]:
        tensors = [t for held in self._held for t in held.values() if t is not None]
        return (
            [m.training for m in self._modules],
            [id(m) for held in self._children for m in held.values()],
            [id(t) for t in tensors],
            [t.data_ptr() for t in tensors if t.layout == torch.strided],
            [len(after) + len(before) for after, before in self._hooks],
            [repr([held.get(name) for name in _ADAPTERS]) for held in self._adapters],
        )


class OptimizerWatch:
    """Notices that an optimizer's parameters, their memory, its state or the structure of its plan are replaced."""

    def __init__(self, optimizer: ZerothOrder, plan: StepPlan) -> None:
        self._optimizer, self._targets, self._structure = optimizer, optimizer.targets, plan.structure
        self._addresses = [t.tensor.data_ptr() for t in self._targets]
        self._state: list[tuple[Tensor, str, Tensor]] = []

    def watch_state(self) -> None:
        """From now on, state tensors count too."""
        state = self._optimizer.state
        self._state = [(t.tensor, name, value) for t in self._targets for name, value in state[t.tensor].items()]

    def changed(self, plan: StepPlan) -> bool:
        """Whether anything is other than when this was made."""
        return (
            self._optimizer.targets is not self._targets
            or plan.structure != self._structure
            or any(self._optimizer.state[p].get(name) is not tensor for p, name, tensor in self._state)
            or any(t.tensor.data_ptr() != a for t, a in zip(self._targets, self._addresses, strict=True))
        )


def versions(leaves: Sequence[Any]) -> list[int]:
    """How often each tensor of a batch has been written to."""
    return [x._version for x in leaves if isinstance(x, Tensor) and not x.is_inference()]


class Alone(Pair):
    """The same two probes, one after the other."""

    def _run(self, lanes: list[Lane]) -> None:
        plan, streams = self.copies.plan, self.streams
        here = streams.current()
        for stream in streams:
            streams.join(stream, here)
        with streams.copying():
            self.copies.write_resident()
        for lane, sign in zip(lanes, (1, -1), strict=True):
            streams.join(lane.stream, streams.copy)
            self._advance(lane, -1, sign)
            for u in range(len(plan.units)):
                streams.join(streams.copy, lane.stream)
                self._write(u, (sign,))
                streams.join(lane.stream, streams.copy)
                self._advance(lane, u, sign)
            streams.join(streams.copy, lane.stream)
        for stream in streams:
            streams.join(here, stream)


def check_independence(losses: tuple[Any, Any], alone: Callable[[], tuple[Any, Any]]) -> None:
    """Make sure that two forwards side by side gave what they give one after the other.

    A module that keeps a tensor on itself for another to read hands one forward's to the other. Losses that differ from
    run to run anyhow say nothing, nor do differences below a hundredth of L⁺ − L⁻ or a few units of rounding.

    Args:
        losses: L⁺ and L⁻, side by side.
        alone: Evaluates both one after the other.

    Raises:
        ValueError: If they differ.
    """
    mine, first = _values(losses), _values(alone())
    if mine == first or not all(map(math.isfinite, mine + first)):
        return
    if first != _values(alone()):
        return
    far = max(abs(a - b) for a, b in zip(mine, first, strict=True))
    rounding = 8.0 * torch.finfo(losses[0].dtype).eps * max(map(abs, first))
    if far > max(0.01 * abs(first[0] - first[1]), rounding):
        raise ValueError(
            f"the forwards at theta ± eps z disturb each other when they advance in turns ({mine} instead of {first}): "
            "a module probably keeps a tensor for another one to read; pass it as an argument, or use "
            "optimizer.step(closure)"
        )


def _values(losses: Sequence[Any]) -> list[float]:
    return [float(loss) for loss in losses]
