"""What could make a captured step wrong without a sign: a model or an optimizer that has changed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from helene.steps.plan import StepPlan
from helene.steps.zeroth import ZerothOrder

_ADAPTERS = ("merged_adapters", "_active_adapter", "_disable_adapters", "scaling")  # of peft's layers


class ModelWatch:
    """Notices that modules, parameters, buffers or hooks are replaced, modes switched, adapters merged or turned off.

    A graph replays what it saw, at the addresses it saw. This is asked at every step, so what can be looked up once is.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.look()

    def look(self) -> None:
        """Take the model as it is now: a forward that Python has run may have made a buffer anew."""
        self._modules = list(self._model.modules())
        self._children = [m._modules for m in self._modules if m._modules]
        held = [(m._parameters, m._buffers) for m in self._modules]
        self._held = [d for pair in held for d in pair if d]
        self._hooks = [(m._forward_hooks, m._forward_pre_hooks) for m in self._modules]
        self._adapters = [m.__dict__ for m in self._modules if "merged_adapters" in m.__dict__]
        self._seen = self._now()

    def changed(self) -> bool:
        """Whether anything is other than at the last look."""
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
