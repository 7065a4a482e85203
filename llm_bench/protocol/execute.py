"""Running a plan: step sizes are tried, one is chosen, its test runs are made; what the store has is not run again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from helene.lab.runs import provenance as origin
from helene.lab.runs.store import Record, Store, config_key
from helene.lab.sweeps.executors import Executor, InlineExecutor
from helene.lab.sweeps.sweep import sweep
from llm_bench.protocol import plan
from llm_bench.protocol.clock import Clock
from llm_bench.protocol.plan import Cell, Choice
from llm_bench.protocol.presets import Preset
from llm_bench.runs import natural_step
from llm_bench.runs.config import UNTRAINED, RunConfig
from llm_bench.runs.environment import Environment, resolved
from llm_bench.runs.methods import captured, takes_compiled
from llm_bench.runs.run import run
from llm_bench.tasks.task import Kind


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

    def slope_run(self, cell: Cell) -> RunConfig | None:
        """What must be measured before the cell's step sizes are known, or None."""
        config = plan.slope_run(self.preset, cell, self.models[cell.kind], self.device)
        return None if config is None else self._resolved(config)

    def tuning_runs(self, cell: Cell, denominator: float = 1.0, below: int = 0, above: int = 0) -> list[RunConfig]:
        """Resolved runs that choose the cell's step size."""
        runs = plan.tuning_runs(self.preset, cell, self.models[cell.kind], self.device, denominator, below, above)
        return [self._resolved(config) for config in runs]

    def test_runs(self, cell: Cell, lr: float | None) -> list[RunConfig]:
        """Resolved runs that are judged."""
        runs = plan.test_runs(self.preset, cell, self.models[cell.kind], self.device, lr)
        return [self._resolved(config) for config in runs]

    def _resolved(self, config: RunConfig) -> RunConfig:
        return self._with_fingerprints(self.with_settings(config))

    def with_settings(self, config: RunConfig) -> RunConfig:
        """The config with the settings of all runs, as far as its method takes them."""
        more = dict(self.more)
        if config.method in UNTRAINED or config.role == "measure" or not captured(config.method):
            more.pop("engine", None)
        if more.get("engine") and self._is_compiled(config):
            more["engine"] = "compiled"
        return replace(config, **more)

    def _is_compiled(self, config: RunConfig) -> bool:
        return config.kind == "causal" and config.task in self.preset.compiled and takes_compiled(config.method)

    def _with_fingerprints(self, config: RunConfig) -> RunConfig:
        """The config with the fingerprints of its model and rows."""
        return resolved(config, self.env)


@dataclass(frozen=True)
class CellRecords:
    """What a store has of a cell.

    Attributes:
        choice: Of the step size; None for an untrained cell and until all tuning runs are there.
        tests: Records of the test runs that are there.
        wanted: Number of test runs of the cell.
        left: Number of runs, tuning ones included, that are not there yet, as far as is known.
        next: Of these the ones that can be made now.
        tuning: Records of the tuning runs that are there, of what was measured before them too.
        failed: Records of runs that ended with an error: they count as missing.
    """

    choice: Choice | None
    tests: tuple[Record, ...]
    wanted: int
    left: int
    next: tuple[RunConfig, ...] = ()
    tuning: tuple[Record, ...] = ()
    failed: tuple[Record, ...] = ()

    @property
    def tried(self) -> list[Record]:
        """Runs of the grid that are there."""
        return [record for record in self.tuning if record.config["role"] == "tune"]


def cell_records(bench: Bench, cell: Cell, found: Mapping[str, Record]) -> CellRecords:
    """What is known of a cell, from the records by key."""
    known = _known(bench, cell, found)
    keys = [config_key(config.to_dict()) for config in known.next]
    return replace(known, failed=tuple(found[key] for key in keys if key in found))


def _known(bench: Bench, cell: Cell, found: Mapping[str, Record]) -> CellRecords:
    slope = bench.slope_run(cell)
    before, denominator = _finished([slope] if slope else [], found), 1.0
    wanted = len(plan.test_seeds(bench.preset, cell))
    if slope is not None:
        if not before:
            tuning = len(bench.preset.multiples)
            return CellRecords(None, (), wanted, 1 + tuning + wanted, (slope,))
        value = before[0].result.get("slope")
        if value is None:  # it ended for want of memory
            return CellRecords(None, (), wanted, 0, (), before)
        denominator = natural_step.denominator(cell.method, value, slope.batch_size)
    runs, there, choice = _tuned(bench, cell, found, denominator)
    if runs and choice is None:
        missing = _missing(runs, found)
        return CellRecords(None, (), wanted, len(missing) + wanted, missing, before + there)
    if choice is not None and choice.lr is None:
        return CellRecords(choice, (), wanted, 0, (), before + there)
    tests = bench.test_runs(cell, choice.lr if choice else None)
    missing = _missing(tests, found)
    return CellRecords(choice, _finished(tests, found), len(tests), len(missing), missing, before + there)


def _tuned(
    bench: Bench, cell: Cell, found: Mapping[str, Record], denominator: float
) -> tuple[list[RunConfig], tuple[Record, ...], Choice | None]:
    """The grid, its records, and the choice once all are there; the grid grows at the end where the best one lies."""
    below = above = 0
    while True:
        runs = bench.tuning_runs(cell, denominator, below, above)
        there = _finished(runs, found)
        if not runs or len(there) < len(runs):
            return runs, there, None
        choice = plan.choose(there)
        if not choice.edge or len(runs) < 2 or below + above == bench.preset.extend.get(cell.kind, 0):
            return runs, there, choice
        if choice.lr == choice.tried[0][0]:
            below += 1
        else:
            above += 1


def _finished(configs: Sequence[RunConfig], found: Mapping[str, Record]) -> tuple[Record, ...]:
    keys = [config_key(config.to_dict()) for config in configs]
    return tuple(found[key] for key in keys if key in found and not found[key].failed)


def _missing(configs: Sequence[RunConfig], found: Mapping[str, Record]) -> tuple[RunConfig, ...]:
    keys = [config_key(config.to_dict()) for config in configs]
    return tuple(c for c, key in zip(configs, keys, strict=True) if key not in found or found[key].failed)


def execute(
    bench: Bench,
    cells: Sequence[Cell],
    store: Store,
    *,
    minutes: float | None = None,
    executor: Executor | None = None,
    progress: bool = True,
    say: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
    after: Callable[[Sequence[Record]], None] = lambda records: None,
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
        after: Called with the new records, one by one where there is a limit of minutes, else a round of them.
    """
    cells = [cell for cell in cells if cell.kind in bench.models]
    name = experiment(bench.preset.name)
    clock = Clock(minutes, store.records(name))
    # With time running out a cell is finished before the next is begun; without, all tuning runs can go side by side.
    groups = [[cell] for cell in cells] if minutes is not None else [cells]
    for group in groups:
        tried: set[str] = set()
        while True:
            found = {record.key: record for record in store.records(name)}
            known = {cell: cell_records(bench, cell, found) for cell in group}
            wanted = {config_key(c.to_dict()): c for what in known.values() for c in what.next}
            todo = [config for key, config in wanted.items() if key not in tried]
            if not todo:
                break
            tried |= set(wanted)
            late = _run_all(name, todo, bench, store, clock, executor, progress, after)
            if late is not None and (why := clock.why_not(late)):
                say(f"{late.method} {late.tuning} on {late.kind} {late.task}: {why}")
        for cell, what in known.items():
            if what.choice is not None and what.choice.lr is None:
                say(f"{cell.method} {cell.tuning} on {cell.kind} {cell.task}: no step size of the grid ended well")
    found = {record.key: record for record in store.records(name)}
    return sum(cell_records(bench, cell, found).left for cell in cells)


def _run_all(
    name: str,
    configs: Sequence[RunConfig],
    bench: Bench,
    store: Store,
    clock: Clock,
    executor: Executor | None,
    progress: bool,
    after: Callable[[Sequence[Record]], None],
) -> RunConfig | None:
    """Make runs; returns the first that would not end in time, with which it stops."""
    call = partial(run, env=bench.env)
    facts, executor = origin.provenance(), executor or InlineExecutor()
    if clock.end is None:
        # One model after another: loading takes longer than many runs.
        order = sorted((c.to_dict() for c in configs), key=lambda c: (c["model"], c["dtype"], c["tuning"]))
        after(sweep(name, order, call, store, provenance=facts, progress=progress, executor=executor))
        return None
    for config in configs:
        if not clock.has_time(config):
            return config
        one = [config.to_dict()]
        new = sweep(name, one, call, store, provenance=facts, progress=False, executor=executor)
        clock.note(new[0])
        after(new)
    return None
