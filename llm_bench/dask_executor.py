"""Cells of a sweep on the workers of a Dask cluster."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from helene.lab.executors import Outcome, Run, call


class DaskExecutor:
    """An executor for `helene.lab.sweep`.

    Args:
        address: Of the scheduler, such as ``tcp://host:8786``.
        resources: What a run needs of a worker, such as ``{"GPU": 1}`` for workers started with ``--resources GPU=1``.
        client: Stands in for ``distributed.Client(address)`` in tests.

    Raises:
        ValueError: If the package distributed is missing or the scheduler does not answer.
    """

    def __init__(self, address: str, resources: Mapping[str, float] | None = None, client: Any = None) -> None:
        self.resources = dict(resources or {})
        if client is None:
            try:
                from distributed import Client  # type: ignore[import-not-found]
            except ImportError as err:
                raise ValueError("--scheduler needs the package distributed: pip install distributed") from err
            try:
                client = Client(address, timeout="10s")
            except Exception as err:
                raise ValueError(f"no Dask scheduler answers at {address}: {err}") from err
        self.client = client

    def outcomes(self, run: Run, configs: Sequence[dict[str, Any]]) -> Iterator[Outcome]:
        """See `helene.lab.executors.Executor`: cells in the order in which they end."""
        started = {
            self.client.submit(call, run, index, config, resources=self.resources, pure=False): (
                index,
                time.perf_counter(),
            )
            for index, config in enumerate(configs)
        }
        try:
            waiting = set(started)
            while waiting:
                ended = {future for future in waiting if future.done()}
                for future in ended:
                    yield self._outcome(future, *started[future])
                waiting -= ended
                if waiting and not ended:
                    time.sleep(0.05)
        finally:
            self.client.cancel(list(started))

    def _outcome(self, future: Any, index: int, since: float) -> Outcome:
        try:
            return future.result()
        except Exception as err:  # the worker died, or the result cannot travel
            return Outcome(index, None, f"{type(err).__name__}: {err}", time.perf_counter() - since)
