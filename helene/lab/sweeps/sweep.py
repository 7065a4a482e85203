"""A list of configs in, a list of records out; what was done before is not done again."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from helene.lab.runs import canonical
from helene.lab.runs import provenance as origin
from helene.lab.runs.store import Record, Store, config_key
from helene.lab.sweeps.executors import Executor, Outcome, ProcessExecutor, Run
from helene.lab.sweeps.progress import Progress


def sweep(
    experiment: str,
    configs: Sequence[Mapping[str, Any]],
    run: Run,
    store: Store,
    jobs: int = 1,
    provenance: Mapping[str, Any] | None = None,
    progress: bool = True,
    *,
    cost: Callable[[dict[str, Any]], float] | None = None,
    executor: Executor | None = None,
    reads: Callable[[Record], object] | None = None,
) -> list[Record]:
    """Run every config that has no finished record yet, and return the records of all.

    Each result is committed as it arrives, by this process alone: a SIGKILL at any moment loses only cells in flight.
    A cell whose run raises, or whose process dies, becomes a record with ``status: "error"`` and a ``message``; the
    next sweep tries it again. Any other status stands. Each result gets ``run_seconds`` unless it has one.

    Args:
        experiment: The name under which the records are kept.
        configs: The cells, JSON values alone; two equal ones run once.
        run: Maps a config to a result, JSON values alone. A module-level function (or a ``functools.partial`` of
            one), since it is sent to spawned processes; everything that decides the result is in the config.
        store: Where the records go, open for writing.
        jobs: Number of worker processes, each with one torch and BLAS thread.
        provenance: Stored with every new record; default :func:`helene.lab.runs.provenance.provenance`.
        progress: Whether to show progress and time left on stderr.
        cost: Expected seconds of a config, up to a factor. The longest start first, so that none is left alone at the
            end, and time left is judged by it. Default: all equal, in the order given.
        reads: What the report makes of a record. A finished one on which it raises (one that was merged from elsewhere,
            say) is run again.
        executor: What runs the cells; default :class:`~helene.lab.sweeps.executors.ProcessExecutor` with ``jobs``.

    Returns:
        The records, in the order of ``configs``.

    Raises:
        ValueError: If jobs is below 1, or a config has no JSON form, or ``run`` cannot be sent to a process.
        StoreError: If the store cannot be written (a full disk). Finished cells are safe.
        KeyboardInterrupt: On Ctrl-C, with the workers ended; finished cells are safe.
    """
    executor = ProcessExecutor(jobs) if executor is None else executor
    cells = [canonical.plain(config, f"configs[{i}]") for i, config in enumerate(configs)]
    keys = [config_key(cell) for cell in cells]
    finished = {r.key: r for r in store.records(experiment) if not r.failed and _readable(r, reads)}
    todo = {key: cell for key, cell in zip(keys, cells, strict=True) if key not in finished}
    costs = {key: 1.0 if cost is None else max(float(cost(cell)), 0.0) for key, cell in todo.items()}
    order = sorted(todo, key=lambda key: -costs[key])  # stable: equal costs keep the order given
    facts = dict(origin.provenance() if provenance is None else provenance) if todo else {}
    already = len(set(keys)) - len(todo)
    with Progress(experiment, len(todo), sum(costs.values()), skipped=already, show=progress) as shown:
        outcomes = executor.outcomes(run, [todo[key] for key in order])
        try:
            for outcome in outcomes:
                key = order[outcome.index]
                record = _record(experiment, todo[key], outcome, facts)
                store.put(record)
                finished[key] = record
                shown.advance(costs[key], record.failed)
        finally:
            getattr(outcomes, "close", lambda: None)()
    return [finished[key] for key in keys]


def _readable(record: Record, reads: Callable[[Record], object] | None) -> bool:
    try:
        if reads is not None:
            reads(record)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as err:
        warnings.warn(
            f"record {record.experiment}/{record.key} cannot be read ({type(err).__name__}: {err}); "
            "its run is made again",
            stacklevel=3,
        )
        return False
    return True


def _record(experiment: str, config: dict[str, Any], outcome: Outcome, provenance: dict[str, Any]) -> Record:
    result: dict[str, Any] = {"status": "error", "message": outcome.message}
    if outcome.result is not None:
        try:
            result = canonical.plain(outcome.result, "result")
        except ValueError as err:
            result["message"] = f"ValueError: {err}"
    result.setdefault("run_seconds", outcome.seconds)
    return Record.of(experiment, config, result, {**provenance, **(outcome.provenance or {})})
