"""Parameters that point at perturbed copies for a while, and the scratch memory of these."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from helene.evaluation.directions import Displacement, Target, write_perturbed
from helene.evaluation.reads import ReadWatch, span
from helene.evaluation.undo import Undo

CALLED_ELSEWHERE = (
    "the model is called while an optimizer's step perturbs it in another thread; call it between steps, or give the "
    "other thread a copy of the model"
)


class Swap:
    """Points parameters at perturbed copies, and back.

    Attributes:
        calls: Forwards of each module that read its copies.
        transformed: Parameters whose module ran inside a transform of torch.func, and so read theta: pointing them
            elsewhere there ends the process.
    """

    def __init__(
        self,
        targets: list[Target],
        scratch: Scratch,
        direction: Displacement,
        radius: float,
        watch: ReadWatch | None,
    ) -> None:
        self.targets, self.scratch, self.direction, self.radius, self.watch = targets, scratch, direction, radius, watch
        self.originals: dict[int, Tensor] = {}
        self.depth: Counter[int] = Counter()
        self.calls: Counter[nn.Module] = Counter()
        self.transformed: set[int] = set()
        self._thread = threading.get_ident()

    def enter(self, indices: Sequence[int]) -> None:
        """Point parameters at perturbed copies, made unless they point at some already."""
        if self.watch:
            self.watch.paused = True
        with out_of_inference():
            new = [i for i in indices if self.depth[i] == 0]
            copies = [self.scratch.take(self.targets[i].tensor) for i in new]
            write_perturbed(copies, [self.targets[i] for i in new], self.direction, self.radius)
            for i, copy in zip(new, copies, strict=True):
                self.originals[i] = self.targets[i].tensor.data
                self.targets[i].tensor.data = copy
                if self.watch and copy.numel():
                    self.watch.regions.append(span(copy))
        self.depth.update(indices)
        if self.watch:
            self.watch.paused = False

    def leave(self, indices: Sequence[int]) -> None:
        """Undo one `enter`; with all of them undone, parameters point at their own memory again."""
        with out_of_inference():
            for i in indices:
                self.depth[i] -= 1
                if self.depth[i] == 0:
                    self._point_back(i)

    def hook(self, undo: Undo, module: nn.Module, owned: list[int]) -> None:
        """Until undone, the module's own parameters are perturbed during each of its forwards."""
        marks: list[int | None] = []

        def before(*_: Any) -> None:
            if threading.get_ident() != self._thread:
                raise RuntimeError(CALLED_ELSEWHERE)
            if in_transform():
                self.transformed.update(owned)
                marks.append(None)
                return
            self.calls[module] += 1
            marks.append(self.scratch.top)
            self.enter(owned)

        def after(_module: nn.Module, _args: Any, output: Any) -> None:
            if threading.get_ident() != self._thread or (mark := marks.pop()) is None:
                return
            if self.watch:
                self.watch.note_views(output, {i: self.targets[i].tensor for i in owned})
            self.leave(owned)
            self.scratch.top = mark

        undo.hook(module, before, after)

    def restore(self) -> None:
        """Point all back, whatever was entered."""
        with out_of_inference():
            for i in list(self.originals):
                self._point_back(i)
        self.scratch.top = 0

    def _point_back(self, i: int) -> None:
        self.targets[i].tensor.data = self.originals[i]  # before it is forgotten: an interrupt may come between
        del self.originals[i]


def out_of_inference() -> AbstractContextManager[object]:
    """Inside, pointing a parameter elsewhere has its effect, and what is made can be written to later."""
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext()


def in_transform() -> bool:
    """Whether the caller runs inside a transform of torch.func, such as ``grad`` or ``vmap``."""
    return torch._C._functorch.peek_interpreter_stack() is not None


class Scratch:
    """Scratch memory: a stack of copies in one buffer per device, as large as the deepest nesting seen so far."""

    ALIGNMENT = 64

    def __init__(self) -> None:
        self.buffers: dict[torch.device, Tensor] = {}
        self.top = self.peak = 0

    def take(self, like: Tensor) -> Tensor:
        """Memory for a copy of a tensor, on top of the stack."""
        start = self.top
        self.top += -(-like.nbytes // self.ALIGNMENT) * self.ALIGNMENT
        self.peak = max(self.peak, self.top)
        buffer = self.buffers.get(like.device)
        if buffer is None:
            buffer = self.buffers[like.device] = torch.empty(0, dtype=torch.uint8, device=like.device)
        if self.top > buffer.numel() or not _is_dense(like):
            return torch.empty_like(like)
        flat = buffer[start : start + like.nbytes].view(like.dtype)
        return flat.as_strided(like.shape, like.stride(), flat.storage_offset())

    def settle(self) -> None:
        """Grow the buffers to the peak, so that the next probe allocates nothing."""
        for device, buffer in self.buffers.items():
            if buffer.numel() < self.peak:
                self.buffers[device] = torch.empty(self.peak, dtype=torch.uint8, device=device)

    @property
    def num_bytes(self) -> int:
        """Bytes held between steps."""
        return sum(buffer.numel() for buffer in self.buffers.values())


def _is_dense(tensor: Tensor) -> bool:
    return tensor.is_contiguous() or torch.empty_like(tensor, device="meta").stride() == tensor.stride()
