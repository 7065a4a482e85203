"""Two forwards of one model, in turns: each runs in a thread of its own and stops where a unit of the schedule begins.

Both forwards read the same modules, whose parameters point at one copy or the other. So only one thread runs at any
time, and whoever resumes it sets the pointers first. The order of turns is fixed: nothing here depends on timing.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from helene.engine.pairs.schedule import Call, Changed, LookupMode, Schedule
from helene.evaluation.reads import ReadWatch
from helene.evaluation.swap import CALLED_ELSEWHERE
from helene.evaluation.undo import Undo

_current = threading.local()


class Worker:
    """A thread that runs one function after another; kept, so that what libraries keep per thread is made once."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=_work, args=(self._tasks,), daemon=True, name="helene-lane").start()
        weakref.finalize(self, self._tasks.put, None)

    def submit(self, task: Callable[[], None]) -> None:
        """Start a function."""
        self._tasks.put(task)

    def wait(self) -> None:
        """Return when all functions that were started have ended."""
        ended: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._tasks.put(lambda: ended.put(None))
        ended.get()


def _work(tasks: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while (task := tasks.get()) is not None:
        task()
        del task  # it holds the model


class Lane:
    """One forward that runs up to a unit's start at a time.

    Args:
        schedule: The order of calls.
        run: Evaluates the loss.
        rows: Answers a lookup in a parameter's rows: (index of the parameter, ids) -> perturbed rows.
        stream: Where its work goes, or None off the GPU.
    """

    def __init__(
        self,
        schedule: Schedule,
        run: Callable[[], Any],
        rows: Callable[[int, Tensor], Tensor],
        stream: torch.cuda.Stream | None,
    ) -> None:
        self.schedule, self.run, self.rows, self.stream = schedule, run, rows, stream
        self.result: Any = None
        self.error: BaseException | None = None
        self.finished = False
        self.watch: ReadWatch | None = None
        self._position = 0
        # Queues, for their operations are whole: an interrupt of a semaphore's may leave it locked.
        self._go: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._stopped: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._worker: Worker | None = None
        self._cancelled = False
        self._starts = {unit.first for unit in schedule.units}
        self._modes: list[LookupMode] = []

    def advance(self, worker: Worker) -> None:
        """Run up to the next unit's start, or to the end.

        Raises:
            BaseException: What the forward raised.
        """
        if self._worker is None:
            self._worker, autocast = worker, _autocast_state()
            worker.submit(lambda: self._work(autocast))
        else:
            self._go.put(None)
        self._stopped.get()
        if self.error is not None:
            raise self.error

    def cancel(self) -> None:
        """End the forward where it stands, and wait until its thread is free again; harmless when called again."""
        self._cancelled = True
        if self._worker is not None:
            self._go.put(None)
            self._worker.wait()

    def _work(self, autocast: Any) -> None:
        _current.lane = self
        try:
            with torch.no_grad(), ExitStack() as stack:
                if self.stream is not None:
                    torch.cuda.set_device(self.stream.device)
                    torch.cuda.set_stream(self.stream)
                if autocast is not None:
                    stack.enter_context(torch.autocast(**autocast))
                if self.watch is not None:
                    stack.enter_context(self.watch)
                self.result = self.run()
            if self._position != len(self.schedule.calls):
                raise Changed(f"{self._position} module calls instead of {len(self.schedule.calls)}")
        except BaseException as error:
            self.error = error
            while self._modes:
                self._modes.pop().__exit__(None, None, None)
        finally:
            self.finished = True
            _current.lane = None
            self._stopped.put(None)

    def before(self, module: nn.Module, parameter: nn.Parameter | None) -> None:
        """Called before a forward of a module that owns copied parameters."""
        if self._cancelled:
            raise _Cancelled
        if self._position >= len(self.schedule.calls) or self.schedule.calls[self._position].module is not module:
            raise Changed(f"call {self._position} is another module's: {type(module).__name__}")
        call = self.schedule.calls[self._position]
        if self._position in self._starts:
            self._pause()
        self._position += 1
        if call.rows:
            assert parameter is not None
            index = call.owned[0]
            mode = LookupMode(parameter, lambda ids: self._answer(index, ids))
            self._modes.append(mode)
            mode.__enter__()

    def _answer(self, index: int, ids: Tensor) -> Tensor:
        if self.watch is not None:
            self.watch.read.add(index)
            self.watch.paused = True  # the kernel reads theta, and perturbs what it reads
        try:
            return self.rows(index, ids)
        finally:
            if self.watch is not None:
                self.watch.paused = False

    def after(self, module: nn.Module, call: Call, output: Any) -> None:
        """Called after a forward of a module that owns copied parameters."""
        if call.rows and self._modes:  # first, for it takes what follows for a reading of the matrix
            mode = self._modes.pop()
            mode.__exit__(None, None, None)
            if mode.others:
                raise Changed("an embedding's matrix is read as a whole")
        if self.watch is not None:
            self.watch.note_views(output, {i: self.watch.tensors[i] for i in call.owned})

    def _pause(self) -> None:
        self._stopped.put(None)
        self._go.get()
        if self._cancelled:
            raise _Cancelled
        if self.stream is not None:  # it may have been given another one
            torch.cuda.set_stream(self.stream)


class _Cancelled(BaseException):
    pass


def in_lane() -> bool:
    """Whether the caller runs in a lane."""
    return getattr(_current, "lane", None) is not None


def hook(undo: Undo, model: nn.Module, calls: tuple[Call, ...]) -> None:
    """Until undone, the modules of a schedule tell the lane that runs them.

    Whoever else calls the model would read one lane's copies, and is told so.
    """
    rows = {call.module for call in calls if call.rows}
    by_module = {call.module: call for call in calls}

    def refuse(*_: Any) -> None:
        if not in_lane():
            raise RuntimeError(CALLED_ELSEWHERE)

    def before(module: nn.Module, args: Any) -> None:
        lane = getattr(_current, "lane", None)
        if lane is None:
            raise RuntimeError(CALLED_ELSEWHERE)
        weight = module.weight if module in rows else None
        lane.before(module, weight if isinstance(weight, nn.Parameter) else None)

    def after(module: nn.Module, args: Any, output: Any) -> None:
        lane = getattr(_current, "lane", None)
        if lane is not None:
            lane.after(module, by_module[module], output)

    undo.hook(model, refuse)
    for module in by_module:
        undo.hook(module, before, after)


def _autocast_state() -> dict[str, Any] | None:
    for kind in ("cuda", "cpu"):
        if torch.is_autocast_enabled(kind):
            return {"device_type": kind, "dtype": torch.get_autocast_dtype(kind)}
    return None
