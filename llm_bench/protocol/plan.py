"""From a preset to runs: what chooses a step size, what is judged with it, and what was chosen."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from helene.lab.runs.store import Record
from llm_bench.protocol.paper_tables import PaperTable
from llm_bench.protocol.presets import TUNING_SEED, Preset
from llm_bench.runs.config import UNTRAINED, RunConfig
from llm_bench.runs.methods import is_first_order
from llm_bench.runs.natural_step import SLOPES, needs_slope
from llm_bench.runs.untrained import unsupported
from llm_bench.tasks import get_task
from llm_bench.tasks.task import Kind

LOST = ("diverged", "non_finite")


@dataclass(frozen=True)
class Cell:
    """One number of a table: a method and tuning on a task."""

    kind: Kind
    task: str
    method: str
    tuning: str


def cells(preset: Preset, kinds: Collection[Kind] | None = None) -> list[Cell]:
    """All cells of a preset, or those of some kinds of models."""
    found = []
    for kind, tasks in preset.tasks.items():
        if kinds is not None and kind not in kinds:
            continue
        for task in tasks:
            for method in preset.untrained:
                cell = Cell(kind, task, method, "full")
                if unsupported(_config(preset, cell, "x", "cuda", {})) is None:
                    found.append(cell)
            some = preset.methods if preset.adapted is None else preset.adapted[kind]
            found += [
                Cell(kind, task, m, t) for m in preset.methods for t in preset.tunings if t == "full" or m in some
            ]
    return found


def cells_of_table(preset: Preset, table: PaperTable) -> list[Cell]:
    """The cells of a preset that a table has."""
    return [c for c in cells(preset) if (c.method, c.tuning) in table.rows and (c.kind, c.task) in table.columns]


def slope_run(preset: Preset, cell: Cell, model: str, device: str, **more: Any) -> RunConfig | None:
    """What measures the size of c for the cell's natural step size, the same for all methods; None: not needed."""
    if not needs_slope(cell.method):
        return None
    of = Cell(cell.kind, cell.task, "mezo", cell.tuning)
    common = {
        "role": "measure",
        "seed": TUNING_SEED,
        "data_seed": _data_seed(preset, cell, preset.tuning_split),
        **more,
    }
    fixed = {"lr": preset.base_lr[cell.tuning], "steps": SLOPES, "eval_every": SLOPES, "target": None}
    return _config(preset, of, model, device, {**common, **fixed})


def tuning_runs(
    preset: Preset,
    cell: Cell,
    model: str,
    device: str,
    denominator: float = 1.0,
    below: int = 0,
    above: int = 0,
    **more: Any,
) -> list[RunConfig]:
    """The runs that choose the cell's step size; none for an untrained one. No test row is looked at.

    See `Preset.step_sizes` for ``denominator``, ``below`` and ``above``.
    """
    if cell.method in UNTRAINED:
        return []
    sizes = preset.step_sizes(cell.method, cell.tuning, denominator, below, above)
    data_seed = _data_seed(preset, cell, preset.tuning_split)
    common = {"role": "tune", "seed": TUNING_SEED, "data_seed": data_seed, **more}
    return [_config(preset, cell, model, device, {**common, "lr": lr}) for lr in sizes]


def test_seeds(preset: Preset, cell: Cell) -> tuple[int, ...]:
    """The seeds of the cell's test runs: the first alone where another would change nothing.

    A seed changes the rows that are trained on or shown, the directions of a zeroth-order method, or where adapters
    start. Gradients of all parameters on the same rows know none of these.
    """
    seeds = preset.seeds[cell.kind]
    draws = cell.method not in UNTRAINED and (cell.tuning != "full" or not is_first_order(cell.method))
    sees = cell.method != "zero-shot" and len({_data_seed(preset, cell, seed) for seed in seeds}) > 1
    return seeds if draws or sees else seeds[:1]


def test_runs(preset: Preset, cell: Cell, model: str, device: str, lr: float | None, **more: Any) -> list[RunConfig]:
    """The runs that are judged: with the chosen step size, on seeds that did not choose it."""
    runs = []
    for seed in test_seeds(preset, cell):
        trained = {} if cell.method in UNTRAINED else {"lr": lr, "seed": seed, "role": "test", **more}
        data_seed = _data_seed(preset, cell, seed)
        runs.append(_config(preset, cell, model, device, {"data_seed": data_seed, **trained}))
    return runs


@dataclass(frozen=True)
class Choice:
    """A step size chosen on dev.

    Attributes:
        lr: The step size, or None where no run of the grid ended with a dev metric.
        edge: Whether it is the smallest or the largest of the grid: the best may lie outside.
        tried: (step size, dev metric, dev loss, status) of each run of the grid, smallest first.
    """

    lr: float | None
    edge: bool
    tried: tuple[tuple[float, float | None, float | None, str], ...]


def choose(records: Sequence[Record]) -> Choice:
    """The step size with the best mean dev metric over the tuning seeds; of equal ones the lower dev loss.

    Of runs that left the model as it was, all are equal: the largest that was not lost comes first.

    Where answers are generated it is the one with the lowest dev loss: generating on dev would take as long as the run.
    """
    by_size: dict[float, list[Mapping[str, Any]]] = {}
    for record in records:
        by_size.setdefault(record.config["lr"], []).append(record.result)
    tried = []
    for lr in sorted(by_size):
        devs = [result["dev"] for result in by_size[lr] if result.get("dev")]
        whole = devs and len(devs) == len(by_size[lr])
        metric = statistics.fmean(d["metric"] or 0.0 for d in devs) if whole else None
        loss = statistics.fmean(d["loss"] for d in devs) if whole else None
        tried.append((lr, metric, loss, by_size[lr][0]["status"]))
    by_loss = any(get_task(r.config["task"], r.config["kind"]).generates for r in records)
    usable = [
        (0.0 if by_loss else metric, -loss, status not in LOST, lr)
        for lr, metric, loss, status in tried
        if metric is not None and loss is not None
    ]
    if not usable:
        return Choice(None, False, tuple(tried))
    lr = max(usable)[-1]
    return Choice(lr, lr in (tried[0][0], tried[-1][0]), tuple(tried))


def _data_seed(preset: Preset, cell: Cell, seed: int) -> int:
    """Only few-shot splits and demonstrations differ by seed."""
    few = cell.kind == "masked" and preset.k is not None
    return seed if few or cell.method == "icl" else 0


def _config(preset: Preset, cell: Cell, model: str, device: str, more: Mapping[str, Any]) -> RunConfig:
    base = preset.settings(cell.kind, cell.task, cell.method, cell.tuning)
    if cell.method not in UNTRAINED and "lr" not in more:
        more = {**more, "lr": preset.step_sizes(cell.method, cell.tuning)[0]}
    return RunConfig(**{"model": model, "device": device, **base, **more})
