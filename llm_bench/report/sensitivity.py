"""How forgiving a method's step size is, from the runs that chose it: nothing is run for this."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from helene.lab.runs.records import read_once
from helene.lab.runs.store import Record, config_key
from llm_bench.protocol.plan import LOST
from llm_bench.protocol.presets import BASE_LR, PRESETS
from llm_bench.report.page_tables import markdown_table
from llm_bench.runs import methods, natural_step

GRID = 4  # step sizes of a grid that counts in a method's summary
WORKS = 0.9  # a step size works where dev loss falls by at least this share of what it falls by at the best one
_SLOPES_SERVE = ("model", "fingerprint", "kind", "task", "tuning", "rows", "dtype", "products")  # runs of the same
_CONFIG = ("method", "tuning", "kind", "task", "model", "steps", "lr", "batch_size")  # what each run must have
_APART = ("fingerprint", "products", "dtype", "batch_size")  # what tells rows of one name apart, told first
MARKS = "sensitivity"  # of the tables in a page


@dataclass(frozen=True)
class Sensitivity:
    """Of one method on one task.

    Attributes:
        method: Its name, with ``tuning``, ``kind``, ``task``, ``model`` and ``steps`` as in the runs.
        sizes: Number of step sizes tried.
        best: The step size with the lowest dev loss, ``loss`` and ``metric`` there; None where every run was lost with
            the model as it was.
        edge: Whether that is the smallest or the largest tried.
        width: Largest over smallest step size that works, see `WORKS`; None where none lowers the dev loss.
        lost: Share of the step sizes that diverged.
        start: Dev loss before training.
        untuned: The method's natural step size, if it is one of those tried, and its dev loss.
        settings: Of the best run, its experiment among them.
    """

    method: str
    tuning: str
    kind: str
    task: str
    model: str
    steps: int
    sizes: int
    best: float | None
    loss: float
    metric: float | None
    edge: bool
    width: float | None
    lost: float
    start: float
    untuned: tuple[float, float] | None
    settings: Mapping[str, Any]

    @property
    def untuned_works(self) -> bool | None:
        """Whether the natural step size works; None where it was not tried, or no step size lowers the dev loss."""
        if self.untuned is None or self.width is None:
            return None
        return _works(self.untuned[1], self.loss, self.start)


def sensitivity(records: Sequence[Record]) -> Sensitivity | None:
    """Of the tuning runs of one method on one task (what was measured before them may be among them), or None."""
    runs = sorted((r for r in records if r.config["role"] == "tune"), key=lambda r: r.config["lr"])
    known = [r for r in runs if math.isfinite(_dev_loss(r))]
    if not known:
        return None
    own = [r for r in known if r.result["status"] not in LOST or r.result.get("best_step")]
    best = min(own or known, key=lambda r: r.result["dev"]["loss"])
    loss = best.result["dev"]["loss"]
    start = best.result["curve"]["dev_loss"][0]
    works = [r.config["lr"] for r in known if _works(r.result["dev"]["loss"], loss, start)]
    usual = natural_size(records)
    there = [r for r in known if usual is not None and math.isclose(r.config["lr"], usual, rel_tol=0.02)]
    config = best.config
    return Sensitivity(
        config["method"],
        config["tuning"],
        config["kind"],
        config["task"],
        config["model"],
        config["steps"],
        len(runs),
        config["lr"] if own else None,
        loss,
        best.result["dev"].get("metric"),
        bool(own) and best in (runs[0], runs[-1]),
        max(works) / min(works) if works else None,
        sum(r.result["status"] in LOST for r in runs) / len(runs),
        start,
        (there[0].config["lr"], there[0].result["dev"]["loss"]) if there else None,
        {**config, "experiment": best.experiment},
    )


def _works(loss: float, best: float, start: float) -> bool:
    """Whether a step size works, see `WORKS`."""
    return start - loss >= WORKS * (start - best) > 0


def _dev_loss(run: Record) -> float:
    """The run's dev loss, nan where it has none."""
    loss = (run.result.get("dev") or {}).get("loss")
    return math.nan if loss is None else float(loss)


def natural_size(records: Sequence[Record]) -> float | None:
    """The step size that the method would be given untuned; None where it needs c and that was not measured."""
    run = next(r for r in records if r.config["role"] == "tune")
    preset = PRESETS.get(run.experiment.removeprefix("llm/"))
    base = (preset.base_lr if preset else BASE_LR)[run.config["tuning"]]
    method = run.config["method"]
    slopes = [r.result["slope"] for r in records if r.result.get("slope")]
    hyper = run.config.get("hyper")
    if natural_step.needs_slope(method, hyper) and not slopes:
        return None
    divisor = natural_step.denominator(method, slopes[0] if slopes else {}, run.config["batch_size"], hyper)
    return natural_step.natural_step_size(method, base, divisor)


def lacks(run: Record) -> str:
    """Why a tuning run is left out; empty where it is not."""
    method = run.config.get("method")
    if method is not None and method not in methods.METHODS:
        return f"this version has no method {method!r}"
    if (tuning := run.config.get("tuning", "full")) not in BASE_LR:
        return f"this version has no tuning {tuning!r}"
    result = ("status", "curve") if math.isfinite(_dev_loss(run)) else ("status",)
    for part, names, values in (("config", _CONFIG, run.config), ("result", result, run.result)):
        for name in names:
            if name not in values:
                return f"their {part} has no {name}"
    if "curve" in result and not (run.result["curve"] or {}).get("dev_loss"):
        return "their curve has no dev_loss"
    return ""


def grouped(records: Iterable[Record]) -> list[Sensitivity]:
    """One for each grid, of runs that differ in their step size alone; measured slopes are given to all they serve."""
    runs: dict[tuple[Any, ...], list[Record]] = {}
    slopes: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        role = record.config.get("role")
        where = tuple(record.config.get(n) for n in _SLOPES_SERVE)
        if role == "measure":
            slopes.setdefault((record.experiment, *where), []).append(record)
        elif role == "tune" and not lacks(record):
            key = (record.experiment, *where, config_key({**record.config, "lr": None}))
            runs.setdefault(key, []).append(record)
    found = []
    for key, some in runs.items():
        told = sensitivity([*some, *slopes.get(key[:-1], [])])
        if told is not None:
            found.append(told)
    order = list(methods.METHODS)
    return sorted(found, key=lambda s: (s.kind, s.task, -s.steps, s.model, order.index(s.method), s.tuning))


def markdown(found: Sequence[Sensitivity]) -> str:
    """Tables for a page of text: of the methods, where a grid is large enough, and of the grids."""
    return "\n\n".join(table for table in (_of_methods(found), _of_grids(found)) if table)


def _of_methods(found: Sequence[Sensitivity]) -> str:
    """A line a method, from grids of `GRID` step sizes or more that tune all parameters; empty where there is none."""
    headers = ["method", "grids", "works over a factor of, median", "best at the edge", "diverged", "untuned works"]
    rows = []
    for method in methods.METHODS:
        some = [s for s in found if s.method == method and s.tuning == "full" and s.sizes >= GRID]
        if not some:
            continue
        widths = [s.width for s in some if s.width is not None]
        tried = [s.untuned_works for s in some if s.untuned_works is not None]
        cells = [methods.get_method(method).label, str(len(some)), f"{median(widths):.0f}" if widths else "–"]
        cells += [str(sum(s.edge for s in some)), f"{fmean(s.lost for s in some):.0%}"]
        cells.append(f"{sum(tried)} of {len(tried)}" if tried else "–")
        rows.append(cells)
    return markdown_table(headers, rows) if rows else ""


def _of_grids(found: Sequence[Sensitivity]) -> str:
    """A line a grid."""
    headers = ["task, model, steps", "method", "best of", "dev there", "works over a factor of", "diverged", "untuned"]
    rows = []
    for s, apart in zip(found, _told_apart(found), strict=True):
        label = methods.get_method(s.method).label + ("" if s.tuning == "full" else f" ({s.tuning})")
        metric = "" if s.metric is None else f"{s.metric:.3f}, "
        untuned = "–" if s.untuned is None else f"{s.untuned[0]:.1e}: loss {s.untuned[1]:.3f}"
        best, edge = "none" if s.best is None else f"{s.best:.1e}", ", at the edge" if s.edge else ""
        cells = [f"{s.task} ({s.kind}), {s.model}, {s.steps}{apart}", label, f"{best} of {s.sizes}{edge}"]
        cells += [
            f"{metric}loss {s.loss:.3f} from {s.start:.3f}",
            "–" if s.width is None else f"{s.width:.0f}",
            f"{s.lost:.0%}",
            untuned,
        ]
        rows.append(cells)
    return markdown_table(headers, rows)


def _told_apart(found: Sequence[Sensitivity]) -> list[str]:
    """Of each row, the settings in which it differs from the others of its name, as few as tell them apart."""
    named: dict[tuple[Any, ...], list[int]] = {}
    for place, s in enumerate(found):
        named.setdefault((s.task, s.kind, s.model, s.steps, s.method, s.tuning), []).append(place)
    said = [""] * len(found)
    for places in named.values():
        for name in dict.fromkeys((*_APART, *found[places[0]].settings)):
            if len({said[i] for i in places}) == len(places):
                break
            values = {i: str(found[i].settings.get(name)) for i in places}
            if name != "lr" and len(set(values.values())) > 1:
                for i, value in values.items():
                    said[i] += f", {name} {value[:8]}" if name == "fingerprint" else f", {name} {value}"
    return said


def table_of(files: Iterable[Path], say: Callable[[str], object] = warnings.warn) -> str:
    """The tables of exported records, a line a method and a line a grid; each record is taken once.

    Args:
        files: Of the records, in any order.
        say: Told of the tuning runs that are left out.

    Raises:
        ValueError: If none of them is a tuning run with a dev loss.
    """
    places = sorted(files)
    records = read_once(places)
    for why, count in Counter(lacks(r) for r in records if r.config.get("role") == "tune").items():
        if why:
            say(f"tuning runs left out: {count}, {why}")
    found = grouped(records)
    if not found:
        raise ValueError(
            f"no tuning run with a dev loss is in {', '.join(map(str, places))}; give files of `helene records export` "
            "that hold runs of role tune"
        )
    return markdown(found)
