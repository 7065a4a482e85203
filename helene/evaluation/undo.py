"""What a step changes for a while is put back, also where Ctrl-C strikes between two lines of it.

`Undo` notes what puts a thing back before the thing is changed. Its user runs it in two nested ``finally``, so that one
interrupt of the first run is mended by the second:

    undo = Undo()
    try:
        try:
            undo.note(put_back)
            change()
        finally:
            undo.run()
    finally:
        undo.run()

A ``with`` would not do: an exception may strike after the change and before ``__enter__`` has returned.
"""

from __future__ import annotations

import signal
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.utils import _python_dispatch as dispatch
from torch.utils.hooks import RemovableHandle

_FLAGS = [name for name in vars(dispatch) if name.startswith("_is_in_")]


class Undo:
    """Acts that put things back. Each must be harmless when it is run twice, or when its change was never made."""

    def __init__(self) -> None:
        self._acts: list[Callable[[], object]] = []

    def note(self, act: Callable[[], object]) -> None:
        """Keep an act, to be called before the change that it undoes."""
        self._acts.append(act)

    def run(self) -> None:
        """Run the acts, the latest first, forgetting each when it is done."""
        while self._acts:
            self._acts[-1]()
            self._acts.pop()

    def hook(
        self, module: nn.Module, before: Callable[..., Any] | None = None, after: Callable[..., Any] | None = None
    ) -> None:
        """Register hooks until this is run, see `Hooks`."""
        Hooks([(module, before, after)]).put_on(self)

    def modes(self) -> None:
        """Put this thread's modes back to what they are here: gradients, dispatch modes."""
        self.note(partial(_modes, torch.is_grad_enabled(), torch._C._len_torch_dispatch_stack(), _flags()))

    def dual_levels(self) -> None:
        """Leave the level of forward differentiation that is entered from here on."""
        self.note(partial(_dual_levels, forward_ad._current_level))


class Hooks:
    """Hooks of modules that are put on and taken off again: one ahead of all others, one called after an error too.

    torch's own functions give the handle when the hook is there already, and an interrupt would lose it.

    Args:
        hooks: Modules, each with what is called before its forward and what after, or None.
    """

    def __init__(self, hooks: Iterable[tuple[nn.Module, Callable[..., Any] | None, Callable[..., Any] | None]]) -> None:
        self._hooks = [(module, _new_id(), before, _new_id(), after) for module, before, after in hooks]

    def put_on(self, undo: Undo) -> None:
        """Until it is undone, they are called."""
        undo.note(self.take_off)
        for module, first, before, last, after in self._hooks:
            if before is not None:
                hooks: Any = module._forward_pre_hooks  # an OrderedDict, whatever torch declares
                hooks[first] = before
                if len(hooks) > 1:
                    hooks.move_to_end(first, last=False)
            if after is not None:
                module._forward_hooks_always_called[last] = True
                module._forward_hooks[last] = after

    def take_off(self) -> None:
        """Harmless when it is called again."""
        for module, first, _, last, _ in self._hooks:
            module._forward_pre_hooks.pop(first, None)
            module._forward_hooks_always_called.pop(last, None)
            module._forward_hooks.pop(last, None)


def _new_id() -> int:
    return RemovableHandle(OrderedDict()).id


def _modes(gradients: bool, depth: int, flags: dict[str, bool]) -> None:
    while torch._C._len_torch_dispatch_stack() > depth:
        torch._C._pop_torch_dispatch_stack(None)
    vars(dispatch).update(flags)
    tell = vars(dispatch).get("set_is_in_mode_without_ignore_compile_internals")
    if tell is not None:
        tell(flags["_is_in_any_mode_without_ignore_compile_internals"])
    torch.set_grad_enabled(gradients)


def _flags() -> dict[str, bool]:
    """What torch's Python notes of the dispatch modes that are entered."""
    return {name: vars(dispatch)[name] for name in _FLAGS}


def _dual_levels(level: int) -> None:
    with suppress(RuntimeError):  # none was entered; torch's Python and its core may have been told one after the other
        torch._C._exit_dual_level(level=level + 1)
    forward_ad._current_level = level


@contextmanager
def deferred_interrupts(wanted: bool = True) -> Iterator[None]:
    """Ctrl-C inside comes when it is over; for work that is short and can neither be repeated nor undone.

    Signals come to the main thread only, so that there is nothing to do in others.
    """
    handler = signal.getsignal(signal.SIGINT)
    if not wanted or not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    caught: list[tuple[Any, ...]] = []
    try:
        signal.signal(signal.SIGINT, lambda *args: caught.append(args))
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if caught:
            handler(*caught[0])
