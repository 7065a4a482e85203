"""Which of two rows of a task leads, and whether by more than noise; HELENE against MeZO in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from llm_bench.protocol.plan import Cell
from llm_bench.report.cell_numbers import Numbers

TASKS = {"sst2": "SST-2", "sst5": "SST-5", "snli": "SNLI", "mnli": "MNLI", "rte": "RTE", "trec": "TREC", "cb": "CB"}
TASKS |= {"boolq": "BoolQ", "wsc": "WSC", "wic": "WiC", "copa": "COPA", "record": "ReCoRD", "squad": "SQuAD"}
CONTROLS = ("bias-only", "linear-probe", "zero-shot", "icl")


def task_name(kind: str, task: str) -> str:
    """A task on pages, with the kind of model."""
    return f"{TASKS.get(task, task)} ({kind})"


@dataclass(frozen=True)
class Lead:
    """How far one row is ahead of another, in points, with the 95 % interval of that."""

    points: float
    low: float
    high: float

    @property
    def sure(self) -> bool:
        """Whether the interval leaves out 0: a lead within its own interval is none."""
        return self.low > 0 or self.high < 0


def lead(one: Numbers, other: Numbers, *, fixed: tuple[bool, bool] = (False, False)) -> Lead:
    """Welch's interval for the difference of two rows, over seeds alone or with the sampling of test rows: the wider.

    A test row's score lies in [0, 1], so that the mean over N of them has at most the variance m (1 - m) / N. Both rows
    are scored on the same texts, so adding the two errs on the safe side. One run of a method whose result depends on
    its seed says nothing of that spread: the interval is infinite.

    Args:
        one: The row that is asked about.
        other: What it is compared with.
        fixed: Of each, whether another seed would give the same (a control without training).
    """
    points = one.mean - other.mean
    spreads, sampling = [], 0.0
    for row, same in zip((one, other), fixed, strict=True):
        n = len(row.values)
        if n < 2 and not same:
            return Lead(points, -math.inf, math.inf)
        spreads.append((float(np.var(row.values, ddof=1)) / n if n > 1 else 0.0, n))
        sampling += row.mean * (100.0 - row.mean) / row.test_rows if row.test_rows else 0.0
    seeds = sum(variance for variance, _ in spreads)
    weights = sum(variance**2 / (n - 1) for variance, n in spreads if n > 1)
    half = max(_half(seeds, weights), _half(seeds + sampling, weights))
    return Lead(points, points - half, points + half)


def _half(variance: float, weights: float) -> float:
    from scipy.stats import norm, t

    factor = float(t.ppf(0.975, variance**2 / weights)) if weights else float(norm.ppf(0.975))
    return factor * math.sqrt(variance)


Rows = Mapping[Cell, Numbers]


def of_task(rows: Rows, kind: str, task: str) -> dict[tuple[str, str], Numbers]:
    """The measured rows of a task by (method, tuning)."""
    return {(c.method, c.tuning): n for c, n in rows.items() if (c.kind, c.task) == (kind, task)}


def best_control(found: Mapping[tuple[str, str], Numbers]) -> tuple[str, Numbers] | None:
    """The control of the highest mean, with its method."""
    rows = [(n.mean, method, n) for (method, _), n in found.items() if method in CONTROLS]
    return max(rows, key=lambda row: row[:2])[1:] if rows else None


@dataclass(frozen=True)
class Duel:
    """HELENE against MeZO on one task.

    Attributes:
        kind: Of model.
        task: Its name.
        helene: Its row.
        mezo: Its row.
        ahead: Of HELENE.
        beaten: Which of both beat the best control beyond noise; None where no control was run.
        control: Method and row of the best control.
    """

    kind: str
    task: str
    helene: Numbers
    mezo: Numbers
    ahead: Lead
    beaten: tuple[str, ...] | None
    control: tuple[str, Numbers] | None

    @property
    def winner(self) -> str:
        """``HELENE``, ``MeZO`` or nothing."""
        return "" if not self.ahead.sure else "HELENE" if self.ahead.points > 0 else "MeZO"

    @property
    def is_decidable(self) -> bool:
        """Whether both have more than one seed: one of a method says nothing of its spread."""
        return math.isfinite(self.ahead.low)

    @property
    def sentence(self) -> str:
        """Both by name, with their numbers."""
        name = task_name(self.kind, self.task)
        both = f"On {name} HELENE reaches {self.helene.mean:.1f} % and MeZO {self.mezo.mean:.1f} %"
        if not self.is_decidable:
            return f"{both}: one seed of a method decides nothing."
        if not self.winner:
            return f"{both}: neither leads beyond noise."
        return f"{both}: {self.winner} leads by {abs(self.ahead.points):.1f} points."


def duels(rows: Rows) -> list[Duel]:
    """HELENE against MeZO, both by full tuning, on every task that has both."""
    out = []
    for kind, task in dict.fromkeys((c.kind, c.task) for c in rows):
        found = of_task(rows, kind, task)
        helene, mezo = found.get(("helene", "full")), found.get(("mezo", "full"))
        if helene is None or mezo is None:
            continue
        control = best_control(found)
        beaten = None
        if control is not None:
            alone = (False, len(control[1].values) == 1)
            both = {"HELENE": helene, "MeZO": mezo}
            beaten = tuple(
                name for name, row in both.items() if (a := lead(row, control[1], fixed=alone)).low > 0 < a.points
            )
        out.append(Duel(kind, task, helene, mezo, lead(helene, mezo), beaten, control))
    return out


def decidable(found: Sequence[Duel]) -> list[Duel]:
    """Those that seeds can decide; all, where none is such."""
    return [d for d in found if d.is_decidable] or list(found)


def headline(found: Sequence[Duel]) -> str:
    """HELENE against MeZO on all tasks, in a sentence."""
    found = decidable(found)
    if not found:
        return "HELENE and MeZO have not both been tested on any task here."
    wins = [sum(d.winner == name for d in found) for name in ("HELENE", "MeZO", "")]
    if len(found) == 1:
        return found[0].sentence
    if not found[0].is_decidable:
        return f"One seed of a method decides nothing: HELENE and MeZO have no second one on any of {len(found)} tasks."
    if wins[2] == len(found):
        return f"Neither HELENE nor MeZO beats the other beyond noise on any of {len(found)} tasks."
    rest = f" On the other {wins[2] if wins[2] > 1 else 'one'} neither leads beyond noise." if wins[2] else ""
    beaten = wins[1] or "none"
    return f"HELENE beats MeZO on {wins[0] or 'none'} of {len(found)} tasks, MeZO beats HELENE on {beaten}.{rest}"


def against_controls(found: Sequence[Duel]) -> str:
    """Which of both beats the best control beyond noise, in a sentence; empty where none was run or can decide it."""
    known = [d for d in found if d.beaten is not None and d.is_decidable]
    if not known:
        return ""
    where = {
        name: [f"{TASKS.get(d.task, d.task)} ({d.kind})" for d in known if d.beaten and name in d.beaten]
        for name in ("MeZO", "HELENE")
    }
    if not any(where.values()):
        return "Neither beats the best control beyond noise on any task." if len(found) > 1 else _NEITHER
    parts = [f"{name} beats it on {', '.join(tasks) or 'none'}" for name, tasks in where.items()]
    return f"Against the best control, beyond noise: {parts[0]}, {parts[1]}."


_NEITHER = "Neither beats the best control beyond noise."
