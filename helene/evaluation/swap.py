"""Parameters that point at perturbed copies for a while: all at once, or module by module while these run."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from helene.evaluation.blocks import Block, Copies
from helene.evaluation.directions import Displacement
from helene.evaluation.layouts import Layout
from helene.evaluation.reads import ReadWatch, span

CALLED_ELSEWHERE = (
    "the model is called while an optimizer's step perturbs it in another thread; call it between steps, or give the "
    "other thread a copy of the model"
)


class Swap:
    """Points parameters at perturbed copies during one evaluation, and back.

    With a layout, whole blocks are copied as they come up and stay until the next one does. Without, or once modules
    run in another order than it says, each module's parameters are copied when it is entered, and point back when it is
    left.

    Args:
        copies: Where copies are made; they have begun.
        direction: What gives z.
        radius: What it is multiplied by.
        owned: Indices of each module's parameters, by the module's number.
        layout: The blocks.
        watch: Told of copies, and of outputs that are views of them.
        grows: Whether scratch memory shall have room for all of it from the next evaluation on.

    Attributes:
        calls: How often each module was entered.
        passed: Parameters that were not copied, and so read as theta, with the reason: their module ran inside a
            transform of torch.func, where pointing them elsewhere ends the process, or with gradients enabled, where a
            backward may read the copy after its place has been taken.
        events: See `helene.evaluation.layouts.Layout`; nothing while the layout is followed.
    """

    def __init__(
        self,
        copies: Copies,
        direction: Displacement,
        radius: float,
        owned: Sequence[Sequence[int]] = (),
        layout: Layout | None = None,
        watch: ReadWatch | None = None,
        grows: bool = True,
    ) -> None:
        self.copies, self.direction, self.radius, self.watch = copies, direction, radius, watch
        self.originals: dict[int, Tensor] = {}
        self.calls = [0] * len(owned)
        self.passed: dict[int, str] = {}
        self.events: list[int] = []
        self._owned, self._layout, self._position = owned, layout, 0
        self._grows = grows
        self._depth: Counter[int] = Counter()
        self._ends: dict[int, int] = {}  # where copies end in scratch memory, also those that are no longer in use
        self._is_first = watch is not None and watch.is_first
        self._holders: dict[int, int] = {}  # by parameter, of its copy's memory before it is read
        self._running_uncopied: list[int] = []  # modules whose parameters were not copied
        self._thread = threading.get_ident()

    def enter(self, indices: Sequence[int]) -> None:
        """Point parameters at perturbed copies, made unless they point at some already."""
        new = tuple(i for i in indices if not self._depth[i])
        if new:
            self._copy(new, max((self._ends[i] for i in self.originals), default=0))
            if self._is_first:
                self._holders |= {i: _num_holders(self.copies.targets[i].tensor) for i in new}
        self._depth.update(indices)

    def leave(self, indices: Sequence[int]) -> None:
        """Undo one `enter`; with all of them undone, parameters point at their own memory again."""
        held = [i for i in indices if self._depth[i]]
        self._depth.subtract(held)
        left = [i for i in held if not self._depth[i]]
        if self.watch:  # a view that is kept, such as on the module, will be read when its memory is another copy's
            before, targets = self._holders, self.copies.targets
            self.watch.seen.update(i for i in left if i in before and _num_holders(targets[i].tensor) > before[i])
        self._point_back(left)

    def check_thread(self) -> None:
        """Raise RuntimeError in another thread than the evaluation's."""
        if threading.get_ident() != self._thread:
            raise RuntimeError(CALLED_ELSEWHERE)

    def before(self, module: int) -> None:
        """To be called before a forward of a module, of that number."""
        self.check_thread()
        if reason := _why_lasting():
            self.passed.update(dict.fromkeys(self._owned[module], reason))
            self._running_uncopied.append(module)
            return
        self.calls[module] += 1
        if self._layout is not None and self._follows(module):
            return
        self.events.append(module)
        self.enter(self._owned[module])

    def after(self, module: int, output: Any) -> None:
        """To be called after a forward of a module, also one that raised."""
        if threading.get_ident() != self._thread:
            return
        if self._running_uncopied and self._running_uncopied[-1] == module:
            self._running_uncopied.pop()
            return
        if self._layout is not None and self._follows(-1 - module):
            return
        self.events.append(-1 - module)
        if self.watch:
            tensors = self.copies.targets
            self.watch.note_views(output, {i: tensors[i].tensor for i in self._owned[module]})
        self.leave(self._owned[module])

    def restore(self) -> None:
        """Point all back, whatever was entered."""
        self._point_back(list(self.originals))

    def _follows(self, event: int) -> bool:
        """Whether the layout expects an event; a block that begins there is copied. Else it is done with."""
        layout, position = self._layout, self._position
        assert layout is not None
        if position == len(layout.events) or layout.events[position] != event:
            self._part_with(layout.events[:position])
            return False
        self._position = position + 1
        if (opening := layout.openings.get(position)) is not None:
            self._point_back(opening.left)
            self._copy(opening.indices, opening.start)
        return True

    def _part_with(self, events: list[int]) -> None:
        """Go on module by module from where these events have led."""
        self._layout, self.events, running = None, events, Counter[int]()
        self._grows = False  # copies lie where a block has left room, and more scratch memory is no use
        for event in events:
            running[event if event >= 0 else -1 - event] += 1 if event >= 0 else -1
        for module, times in running.items():
            for i in self._owned[module]:
                self._depth[i] += times
        self._point_back([i for i in self.originals if not self._depth[i]])

    def _copy(self, indices: tuple[int, ...], start: int) -> None:
        if self.watch:
            self.watch.paused = True
        with out_of_inference():
            blocks, ends = self.copies.at(indices, start, self._grows, apart=self._is_first)
            self._ends |= ends
            for block in blocks:
                self._point_at(block)
        if self.watch:
            self.watch.paused = False

    def _point_at(self, block: Block) -> None:
        copies, targets = self.copies.write(block, self.direction, self.radius), self.copies.targets
        self.originals |= block.thetas
        for i, copy in copies.items():
            targets[i].tensor.data = copy
        if self.watch:
            self.watch.regions += [span(copy) for copy in copies.values() if copy.numel()]

    def _point_back(self, indices: Iterable[int]) -> None:
        targets, originals = self.copies.targets, self.originals
        with out_of_inference():
            for i in indices:
                if i in originals:
                    targets[i].tensor.data = originals[i]
                    del originals[i]  # at last: an interrupt may come between


def out_of_inference() -> AbstractContextManager[object]:
    """Inside, pointing a parameter elsewhere has its effect, and what is made can be written to later."""
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext()


def _why_lasting() -> str:
    """Why a module that runs now must find its copies made, and made to last, before the loss began; else empty."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "their module runs inside a transform of torch.func"
    return "their module runs with gradients enabled, for a backward in the loss" if torch.is_grad_enabled() else ""


def _num_holders(tensor: Tensor) -> int:
    """How many tensors, and the like, hold a tensor's memory."""
    count: int = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
    return count
