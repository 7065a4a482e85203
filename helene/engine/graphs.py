"""Work that is recorded once and made again: as a CUDA graph, or by the same calls where there is none."""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from helene.evaluation.undo import Undo


class Recorded(Protocol):
    """Work that can be made again."""

    def replay(self) -> None:
        """Enqueue it."""


class Repeated:
    """Makes the calls themselves: what stands for a graph on a machine without a GPU."""

    def __init__(self, replay: Callable[[], None]) -> None:
        self.replay = replay


_failed: list[torch.cuda.CUDAGraph] = []  # the allocator may still ask them which streams they were capturing


@contextmanager
def capturing(graph: torch.cuda.CUDAGraph, pool: Any) -> Iterator[None]:
    """Inside, this thread's work on the GPU goes into the graph. No garbage is collected meanwhile: a graph that is
    destroyed during a capture makes the capture fail.

    An interrupt comes out as itself; torch would hide it behind an error about work that it has left unfinished.
    """
    undo, handled = Undo(), sys.exception()
    try:
        try:
            if gc.isenabled():
                undo.note(gc.enable)
                gc.disable()
            stream = _stream(torch.cuda.current_device())
            with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                yield
        except Exception as error:
            if (interrupt := _interrupt_behind(error, handled)) is not None:
                raise interrupt from None
            raise
        finally:
            undo.run()
    finally:
        undo.run()


def _interrupt_behind(error: BaseException | None, handled: BaseException | None) -> BaseException | None:
    """What other than an `Exception` led to an error, after what was being handled before."""
    while error is not None and error is not handled:
        if not isinstance(error, Exception):
            return error
        error = error.__context__
    return None


@functools.cache
def _stream(device: int) -> torch.cuda.Stream:
    """A stream to capture on. torch's own is of the device that captured first, and a replay goes where it is."""
    return torch.cuda.Stream(device)


def give_up(graphs: Sequence[torch.cuda.CUDAGraph], here: torch.cuda.Stream) -> None:
    """Restore what torch leaves changed when a capture ends with an error: the current stream, and the generator, which
    would refuse to draw until a capture succeeds.

    Args:
        graphs: Those that were begun.
        here: The stream that was the current one.
    """
    _failed.extend(graphs)
    torch.cuda.set_stream(here)
    small = torch.cuda.CUDAGraph()
    try:
        with capturing(small, None):
            torch.zeros(1, device=here.device)
    except RuntimeError:
        _failed.append(small)
        torch.cuda.set_stream(here)
