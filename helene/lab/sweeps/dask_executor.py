"""Cells of a sweep on the workers of a Dask cluster that somebody else started: on this machine, on several, on SLURM.

Workers return outcomes; the process that started the sweep alone writes them. A worker that dies costs what it was at:
Dask runs that cell again on another worker, and gives it up (``distributed.scheduler.allowed-failures``, three deaths
by default) when it takes one worker after another along.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any

from helene.lab.runs.provenance import provenance
from helene.lab.sweeps.executors import Outcome, Run, call, limit_torch_threads

_LOOK_AGAIN_SECONDS = 0.05  # for a result that was lost
_LOOK_EVERY_SECONDS = 1.0  # for workers that joined or left, and whether the scheduler is there
# The command and its time are the sweep's, not the worker's.
_OF_A_WORKER = ("commit", "dirty", "versions", "cpu", "cpus", "gpu", "threads", "platform")


class ClusterError(RuntimeError):
    """The cluster went away in the middle of a sweep; what had come back by then is in the store."""


class DaskExecutor:
    """An executor for `helene.lab.sweeps.sweep`; close it, or use it as a context manager, when the sweep is over.

    Args:
        address: Of the scheduler, such as ``tcp://host:8786``.
        resources: What a run needs of a worker, such as ``{"GPU": 1}`` for workers started with ``--resources GPU=1``.
        timeout_seconds: How long the scheduler may take to answer.

    Raises:
        ValueError: If the package distributed is missing or the scheduler does not answer.
    """

    def __init__(
        self, address: str, resources: Mapping[str, float] | None = None, *, timeout_seconds: float = 10.0
    ) -> None:
        self.address, self.resources = address, dict(resources or {})
        try:
            from distributed import Client
        except ImportError as err:
            raise ValueError("--scheduler needs the package distributed: pip install 'helene[dask]'") from err
        try:
            with _quiet():
                self._client: Any = Client(address, timeout=timeout_seconds, set_as_default=False)
        except Exception as err:
            why = " ".join(str(err).split())
            raise ValueError(
                f"no Dask scheduler answers at {address} ({why}); start one with `dask scheduler`, or leave "
                "--scheduler out to run on this machine's cores"
            ) from err

    def __enter__(self) -> DaskExecutor:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Let the scheduler go; it and its workers stay as they are. Harmless when called again."""
        with _quiet(), contextlib.suppress(Exception):
            self._client.close(timeout=2)

    def slots(self) -> int:
        """How many cells the workers of this moment can run at once; more may join at any time.

        Raises:
            ClusterError: If the scheduler is gone.
        """
        with self._as_cluster_errors():
            workers = self._client.scheduler_info(n_workers=-1)["workers"].values()
        return sum(self._room(worker) for worker in workers)

    def _room(self, worker: Mapping[str, Any]) -> int:
        offers = [int(worker["resources"].get(name, 0.0) / need) for name, need in self.resources.items()]
        return min([int(worker["nthreads"]), *offers])

    def outcomes(self, run: Run, configs: Sequence[dict[str, Any]]) -> Iterator[Outcome]:
        """See `helene.lab.sweeps.executors.Executor`: cells in the order in which they end.

        Never more cells are with the cluster than it can run at once: one that waits on a worker would share the blame
        for that worker's death.

        Raises:
            ClusterError: If the scheduler is gone.
        """
        waiting, flying = deque(range(len(configs))), dict[str, tuple[int, Any, float]]()
        ended: SimpleQueue[Any] = SimpleQueue()
        slots, asked = 0, -math.inf
        try:
            while waiting or flying:
                if time.monotonic() - asked > _LOOK_EVERY_SECONDS:
                    slots, asked = self.slots(), time.monotonic()
                while waiting and len(flying) < slots:
                    index = waiting.popleft()
                    future = self._submit(run, index, configs[index])
                    flying[future.key] = index, future, time.perf_counter()
                    future.add_done_callback(ended.put)
                with contextlib.suppress(Empty):
                    future = ended.get(timeout=_LOOK_EVERY_SECONDS)
                    index, _, since = flying[future.key]
                    outcome = self._outcome(future, index, since)
                    if outcome is None:
                        time.sleep(_LOOK_AGAIN_SECONDS)  # Dask calls back at once as long as a result is lost
                        future.add_done_callback(ended.put)
                        continue
                    del flying[future.key]
                    yield outcome
        finally:
            with _quiet(), contextlib.suppress(Exception):
                if self._client.status == "running":
                    self._client.cancel([future for _, future, _ in flying.values()], force=True)

    def _submit(self, run: Run, index: int, config: dict[str, Any]) -> Any:
        with self._as_cluster_errors():  # pure=False: a cluster may remember the cell from an earlier sweep
            return self._client.submit(_on_worker, run, index, config, resources=self.resources or None, pure=False)

    def _outcome(self, future: Any, index: int, since: float) -> Outcome | None:
        """None where the result died with its worker: Dask runs the cell again."""
        if future.status == "cancelled" or self._client.status != "running":
            raise self._gone()
        if future.status == "lost":
            return None
        try:
            outcome: Outcome = future.result(timeout=60)
        except Exception as err:  # its workers died of it, or the result cannot travel
            return Outcome(index, None, _why(err), time.perf_counter() - since)
        return outcome

    @contextlib.contextmanager
    def _as_cluster_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as err:
            raise self._gone() from err

    def _gone(self) -> ClusterError:
        return ClusterError(
            f"the Dask scheduler at {self.address} is gone; finished cells are safe: start a scheduler and workers "
            "again and repeat the command, it goes on from there"
        )


def _why(err: Exception) -> str:
    if type(err).__name__ == "KilledWorker":  # its own words name keys and addresses that nobody knows
        return (
            "worker process was killed, as every worker that Dask gave this cell to; out of memory is the usual cause"
        )
    return " ".join(f"{type(err).__name__}: {err}".split())


def _on_worker(run: Run, index: int, config: dict[str, Any]) -> Outcome:
    limit_torch_threads()
    return replace(call(run, index, config), provenance=_worker_facts())


@functools.cache
def _worker_facts() -> dict[str, Any]:
    """Where the worker runs, asked once in its life: a cluster's machines and checkouts may differ from ours."""
    facts = provenance("")
    return {name: facts[name] for name in _OF_A_WORKER}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the log lines of a connection that fails: what they say is in our error."""
    loggers = [logging.getLogger(name) for name in ("distributed.client", "distributed.comm", "distributed.core")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
