"""Running a plan: step sizes are tried, one is chosen, its test runs are made; what the store has is not run again."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from helene.lab import provenance as origin
from helene.lab.executors import Executor, InlineExecutor
from helene.lab.store import Record, Store, config_key
from helene.lab.sweep import sweep
from llm_bench.runs.config import RunConfig
from llm_bench.runs.environment import Environment, resolved
from llm_bench.runs.run import run
from llm_bench.tables import plan
from llm_bench.tables.plan import Cell, Choice
from llm_bench.tables.presets import Preset
from llm_bench.tasks.base import Kind


def experiment(preset: str) -> str:
    """The name under which a preset's records are kept."""
    return f"llm/{preset}"


@dataclass(frozen=True)
class Bench:
    """Where a preset is run.

    Attributes:
        preset: What is run.
        models: Name of the model of each kind; kinds without one are left out.
        env: Where things are.
        device: Kind of device, as configs have it.
        more: Settings of all runs, such as ``engine``.
    """

    preset: Preset
    models: Mapping[Kind, str]
    env: Environment
    device: str = "cpu"
    more: Mapping[str, Any] = field(default_factory=dict)

    def tuning_runs(self, cell: Cell) -> list[RunConfig]:
        """Resolved runs that choose the cell's step size."""
        runs = plan.tuning_runs(self.preset, cell, self.models[cell.kind], self.device)
        return [self._resolved(config) for config in runs]

    def test_runs(self, cell: Cell, lr: float | None) -> list[RunConfig]:
        """Resolved runs that are judged."""
        runs = plan.test_runs(self.preset, cell, self.models[cell.kind], self.device, lr)
        return [self._resolved(config) for config in runs]

    def _resolved(self, config: RunConfig) -> RunConfig:
        import dataclasses

        from llm_bench.methods import is_first_order
        from llm_bench.runs.config import UNTRAINED

        more = dict(self.more)
        if config.method in UNTRAINED or is_first_order(config.method):
            more.pop("engine", None)
        return resolved(dataclasses.replace(config, **more), self.env)


@dataclass(frozen=True)
class Measured:
    """What a store has of a cell.

    Attributes:
        choice: Of the step size; None for an untrained cell.
        tests: Records of the test runs that are there.
        wanted: Number of test runs of the cell.
        left: Number of runs, tuning ones included, that are not there yet.
    """

    choice: Choice | None
    tests: tuple[Record, ...]
    wanted: int
    left: int


def measured(bench: Bench, cell: Cell, found: Mapping[str, Record]) -> Measured:
    """What is known of a cell, from the records by key."""
    tuning = bench.tuning_runs(cell)
    keys = [config_key(config.to_dict()) for config in tuning]
    there = [found[key] for key in keys if key in found and not found[key].failed]
    wanted = len(bench.preset.seeds[cell.kind]) if tuning else len(bench.test_runs(cell, None))
    if len(there) < len(tuning):
        return Measured(None, (), wanted, len(tuning) - len(there) + wanted)
    choice = plan.choose(there) if tuning else None
    if choice is not None and choice.lr is None:
        return Measured(choice, (), wanted, 0)
    tests = bench.test_runs(cell, choice.lr if choice else None)
    done = [found[key] for c in tests if (key := config_key(c.to_dict())) in found and not found[key].failed]
    return Measured(choice, tuple(done), wanted, len(tests) - len(done))


def execute(
    bench: Bench,
    cells: Sequence[Cell],
    store: Store,
    *,
    minutes: float | None = None,
    executor: Executor | None = None,
    progress: bool = True,
    say: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
) -> int:
    """Make the runs that are missing; returns how many are left (those that failed or that there was no time for).

    Args:
        bench: What and where.
        cells: Cells that are wanted.
        store: Where records go.
        minutes: No run is begun that would not end within this time, judged by the runs before it.
        executor: What carries the runs; default this process.
        progress: Whether progress is shown.
        say: Told what is skipped.
    """
    cells = [cell for cell in cells if cell.kind in bench.models]
    clock = _Clock(minutes)
    name = experiment(bench.preset.name)
    # With time running out a column is finished before the next is begun; without, all tuning runs can go side by side.
    columns: dict[Any, list[Cell]] = {}
    for cell in cells:
        columns.setdefault((cell.kind, cell.task) if minutes is not None else None, []).append(cell)
    for column in columns.values():
        tuning = [config for cell in column for config in bench.tuning_runs(cell)]
        _run_all(name, tuning, bench, store, clock, executor, progress)
        _run_all(name, _chosen(bench, column, store, say), bench, store, clock, executor, progress)
    found = {record.key: record for record in store.records(name)}
    return sum(measured(bench, cell, found).left for cell in cells)


def _chosen(bench: Bench, cells: Sequence[Cell], store: Store, say: Callable[[str], None]) -> list[RunConfig]:
    """The test runs of the cells whose step size is known."""
    found = {record.key: record for record in store.records(experiment(bench.preset.name))}
    tests: list[RunConfig] = []
    for cell in cells:
        known = measured(bench, cell, found)
        if known.choice is None and bench.tuning_runs(cell):
            continue
        if known.choice is not None and known.choice.lr is None:
            say(f"{cell.method} {cell.tuning} on {cell.kind} {cell.task}: no step size of the grid ended well")
            continue
        tests += bench.test_runs(cell, known.choice.lr if known.choice else None)
    return tests


class _Clock:
    def __init__(self, minutes: float | None) -> None:
        self.end = None if minutes is None else time.monotonic() + 60 * minutes
        self.seconds: list[float] = []

    def has_time(self) -> bool:
        if self.end is None:
            return True
        longest = max(self.seconds[-20:], default=0.0)
        return time.monotonic() + 1.1 * longest < self.end


def _run_all(
    name: str,
    configs: Sequence[RunConfig],
    bench: Bench,
    store: Store,
    clock: _Clock,
    executor: Executor | None,
    progress: bool,
) -> None:
    call = partial(run, env=bench.env)
    # One model after another: loading takes longer than many runs.
    order = sorted((c.to_dict() for c in configs), key=lambda c: (c["model"], c["dtype"], c["tuning"]))
    if clock.end is None:
        facts = origin.provenance() if order else {}
        sweep(name, order, call, store, provenance=facts, progress=progress, executor=executor or InlineExecutor())
        return
    facts = origin.provenance()
    for config in order:
        if not clock.has_time():
            return
        start = time.monotonic()
        known = store.get(config_key(config), name)
        sweep(name, [config], call, store, provenance=facts, progress=False, executor=InlineExecutor())
        if known is None:
            clock.seconds.append(time.monotonic() - start)
