"""Where the cells of a sweep run: this process, or worker processes that may die without taking others along.

The seam for more: anything with :class:`Executor`'s one method can carry a sweep (one is
`helene.lab.sweeps.dask_executor`).
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from typing import Any, Protocol

Run = Callable[[dict[str, Any]], Mapping[str, Any]]
_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


@dataclass(frozen=True)
class Outcome:
    """What became of one cell.

    Attributes:
        index: Its position in the list that the executor was given.
        result: What ``run`` returned, or None when it raised or its process died.
        message: Why, when there is no result.
        seconds: Wall-clock of the call.
        provenance: Where it ran, if that is not here: it replaces what the sweep says of its own process.
    """

    index: int
    result: Mapping[str, Any] | None
    message: str | None
    seconds: float
    provenance: Mapping[str, Any] | None = None


class Executor(Protocol):
    """Runs cells and yields what became of each, in the order in which they end."""

    def outcomes(self, run: Run, configs: Sequence[dict[str, Any]]) -> Iterator[Outcome]:
        """Call ``run`` on each config, starting them in the given order.

        Closing the iterator, or an exception thrown into it, must leave no process behind.
        """


def call(run: Run, index: int, config: dict[str, Any]) -> Outcome:
    """One call of ``run``, with whatever it raises made into a message of one line."""
    start = time.perf_counter()
    try:
        result, message = run(config), None
        if not isinstance(result, Mapping):
            kind = type(result).__name__
            result, message = None, f"TypeError: run must return a dict, it returned {kind}"
    except Exception as err:
        last = traceback.extract_tb(err.__traceback__)[-1]
        where = f"{os.path.basename(last.filename)}:{last.lineno}"
        result, message = None, " ".join(f"{type(err).__name__}: {err} ({where})".split())
    return Outcome(index, result, message, time.perf_counter() - start)


class InlineExecutor:
    """Runs the cells in this process, one after the other: for tests, debuggers and cells of a millisecond."""

    def outcomes(self, run: Run, configs: Sequence[dict[str, Any]]) -> Iterator[Outcome]:
        """See :class:`Executor`."""
        for index, config in enumerate(configs):
            yield call(run, index, config)


class ProcessExecutor:
    """Runs the cells in spawned processes, one torch and BLAS thread each.

    A process that dies (killed, out of memory, a crash in native code) costs the cell it was at and is replaced.
    Workers end by themselves when this process is gone, SIGKILL included.

    Args:
        jobs: Number of processes, at least 1.

    Raises:
        ValueError: If jobs is below 1.
    """

    def __init__(self, jobs: int) -> None:
        if isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1:
            raise ValueError(
                f"jobs must be an integer of at least 1, got {jobs!r}; the number of cores is a good choice"
            )
        self.jobs = jobs

    def outcomes(self, run: Run, configs: Sequence[dict[str, Any]]) -> Iterator[Outcome]:
        """See :class:`Executor`.

        Raises:
            ValueError: If ``run`` cannot be sent to another process.
            RuntimeError: If workers die before they are ready, so that no cell could ever run.
        """
        try:
            pickle.dumps(run)
        except Exception as err:
            raise ValueError(
                f"run must be a function defined at the top level of a module, got {run!r}: {err}"
            ) from err
        waiting = deque(range(len(configs)))
        workers: list[_Worker] = []
        ever_ready, false_starts = False, 0
        try:
            while waiting or workers:
                while len(workers) < min(self.jobs, len(waiting) + sum(w.index is not None for w in workers)):
                    workers.append(_Worker(run))
                ready = connection.wait([w.pipe for w in workers])
                for worker in [w for w in workers if w.pipe in ready]:
                    outcome = worker.receive()
                    ever_ready = ever_ready or worker.ready
                    if worker.ready:
                        false_starts = 0
                    elif worker.death is not None:
                        false_starts += 1
                        if not ever_ready or false_starts == 3:
                            raise RuntimeError(_FALSE_START.format(worker.death))
                    if worker.death is None and waiting:
                        index = waiting.popleft()
                        worker.send(index, configs[index])
                    else:
                        worker.stop()
                        workers.remove(worker)
                    if outcome is not None:
                        yield outcome
        finally:
            for worker in workers:
                worker.stop()


_FALSE_START = (
    "a worker process {} before it was ready: see its message above; the module that holds run must import, and a "
    "script that starts a sweep needs `if __name__ == '__main__':`"
)


class _Worker:
    """The parent's end of one worker process."""

    def __init__(self, run: Run) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, pickle.dumps(run)), daemon=True)
        with _one_thread_environment():
            self.process.start()
        theirs.close()
        self.index: int | None = None  # position of the cell that it runs
        self.ready = False
        self.death: str | None = None
        self.since = time.perf_counter()

    def send(self, index: int, config: dict[str, Any]) -> None:
        self.index, self.since = index, time.perf_counter()
        with contextlib.suppress(OSError):  # a worker that has just died is found by the next receive
            self.pipe.send((index, config))

    def receive(self) -> Outcome | None:
        """The next outcome; None is a first sign of life, or a death at no cell. Sets ``death`` when it is over."""
        try:
            outcome = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(timeout=10)
            self.death = _death(self.process.exitcode)
            if self.index is not None:
                index, self.index = self.index, None
                return Outcome(index, None, f"worker process {self.death}", time.perf_counter() - self.since)
            return None
        self.ready, self.index = True, None
        return outcome

    def stop(self) -> None:
        self.pipe.close()
        # An idle worker ends by itself when its pipe closes; one at work would go on to the end of its cell.
        if self.index is None and self.ready:
            self.process.join(timeout=5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.process.close()


def _death(exitcode: int | None) -> str:
    if exitcode is None:
        return "stopped answering"
    if exitcode < 0:
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-exitcode).name}"
    return f"ended with exit code {exitcode}"


@contextlib.contextmanager
def _one_thread_environment() -> Iterator[None]:
    """Set for the moment of a spawn: thread pools read these when numpy and torch are first imported."""
    before = {name: os.environ.get(name) for name in _ONE_THREAD}
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _work(pipe: connection.Connection, pickled: bytes) -> None:
    """A worker's life: say that it is ready, then answer configs with outcomes until the pipe closes.

    Its function comes pickled, so that the parent is watched before the function's module is imported.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent alone decides
    threading.Thread(target=_die_with_parent, daemon=True).start()
    run: Run = pickle.loads(pickled)
    with contextlib.suppress(EOFError, OSError):
        pipe.send(None)
        while True:
            index, config = pipe.recv()
            limit_torch_threads()
            pipe.send(_sendable(call(run, index, config)))


def _sendable(outcome: Outcome) -> Outcome:
    try:
        pickle.dumps(outcome)
    except Exception as err:
        message = f"the result cannot be sent: {type(err).__name__}: {err}"
        return Outcome(outcome.index, None, message, outcome.seconds)
    return outcome


def limit_torch_threads() -> None:
    """One thread for torch in this process, when torch is loaded at all."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != 1:
        torch.set_num_threads(1)


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
