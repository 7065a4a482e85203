"""What was measured, cell by cell, put in the order in which it is analysed. Never imports torch."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from helene.lab.runs.records import Record, config_key
from helene.lab.scaling.cells import Cells
from synthetic.design import CONTROLS, Design, PlannedCell, control_config, known, trials

TITLES = {name: method.title for name, method in known().items()}
FAMILIES = {
    "quadratic": "quadratics",
    "log_cosh": "log-cosh losses",
    "softplus": "softplus losses",
    "quartic": "quartic plus quadratic",
    "ill_conditioned": "ill-conditioned quadratics",
    "low_rank": "quadratics of low effective rank",
    "heterogeneous": "heterogeneous layers (quadratic)",
    "heterogeneous_log_cosh": "heterogeneous layers (log-cosh)",
    "one_wide": "one wide layer among narrow ones",
    "relabelled": "one function in several partitions",
    "coupled_half": "coupled layers (half way)",
    "coupled_strong": "strongly coupled layers",
    "softmax": "softmax regression",
    "large": "large quadratics",
    "gram": "quadratics of any width",
    "digits": "logistic regression (digits)",
    "breast_cancer": "logistic regression (breast cancer)",
}


@dataclass(frozen=True)
class MeasuredCell:
    """One cell.

    Attributes:
        key: Of its record.
        n: Layers.
        max_d: Largest dimension of a layer, the width where all are equal.
        d: Total dimension.
        trace_over_mu: tr H / mu at the minimizer.
        steps: Per test seed; inf is a miss.
        letters: One status letter per test seed.
        status: Of the cell.
        cap: Most steps.
        best: The chosen trial; empty if none reached the target.
        edge: Whether its step size was at the edge of its grid.
        trials: Those that were tried.
        tuning: Per trial, its steps on the tuning seeds; empty if nothing was tuned.
        tuning_letters: Per trial, one status letter per tuning seed.
        forwards_per_step: None where no such count is fair.
        predicted: Steps that theory predicts, for the controls.
        theory: By which argument.
        scatter: Where 95 % of the medians fall that are found with so many seeds; None where theory says nothing of it.
    """

    key: str
    n: int
    max_d: int
    d: int
    trace_over_mu: float
    steps: tuple[float, ...]
    letters: str
    status: str
    cap: float
    best: Mapping[str, Any]
    edge: bool
    trials: tuple[Mapping[str, Any], ...]
    tuning: tuple[tuple[float, ...], ...]
    tuning_letters: tuple[str, ...]
    forwards_per_step: float | None
    predicted: float | None = None
    theory: str = ""
    scatter: tuple[float, float] | None = None

    @property
    def median(self) -> float:
        """Of the test seeds."""
        return statistics.median(self.steps)

    @property
    def tuning_medians(self) -> list[float]:
        """Per trial, the median count on the tuning seeds."""
        return [statistics.median(row) for row in self.tuning]


@dataclass(frozen=True)
class Series:
    """The cells of one method in one family from one kind of start.

    Attributes:
        family: Name of the family.
        start: Kind of start.
        method: Name of the method.
        variant: What tells it from others of the same method; often empty.
        cells: Ordered by n, then width.
        ran_from: The start of the runs, another one where they stand for this one too.
        borrowed: Why they do; empty if they are its own.
        unsupported: Reasons of the method for leaving cells out.
        problem: Its kind, see `synthetic.problems.build`.
    """

    family: str
    start: str
    method: str
    variant: str
    cells: tuple[MeasuredCell, ...]
    ran_from: str = ""
    borrowed: str = ""
    unsupported: tuple[str, ...] = ()
    problem: str = ""

    @property
    def label(self) -> str:
        """For people."""
        title = TITLES.get(self.method, self.method)
        return f"{title} ({self.variant})" if self.variant else title

    @property
    def name(self) -> str:
        """For files and addresses."""
        return "-".join(filter(None, (self.family, self.start, self.method, _slug(self.variant))))

    @property
    def lender(self) -> str:
        """Name of the series whose runs these are."""
        return replace(self, start=self.ran_from or self.start).name

    @property
    def columns(self) -> dict[str, list[float]]:
        """Predictors per cell."""
        cells = self.cells
        return {
            "n": [float(c.n) for c in cells],
            "w": [float(c.max_d) for c in cells],
            "max_d": [float(c.max_d) for c in cells],
            "d": [float(c.d) for c in cells],
            "trace_over_mu": [c.trace_over_mu for c in cells],
        }

    def measured(self) -> Cells:
        """For the fits."""
        # A start that is at the target already counts as one step, so that it has a logarithm.
        samples = [[max(s, 1.0) for s in c.steps] for c in self.cells]
        return Cells.of(self.columns, samples, [c.cap for c in self.cells])

    def predicted(self) -> Cells | None:
        """The same with the predicted counts, where every cell has one."""
        if not self.cells or any(c.predicted is None for c in self.cells):
            return None
        return Cells.of(self.columns, [[c.predicted or 1.0] for c in self.cells], [c.cap for c in self.cells])


def collect(design: Design, records: Iterable[Record]) -> list[Series]:
    """The series of a design, in its order, each start of a cell that stands for several in a series of its own."""
    by_key = {record.key: record for record in records}
    grouped: dict[tuple[str, str, str, str], list[tuple[PlannedCell, str]]] = {}
    for cell in design.cells:
        for start in cell.starts:
            key = (cell.family, start, cell.config["method"], cell.config["variant"])
            grouped.setdefault(key, []).append((cell, cell.reason if start != cell.starts[0] else ""))
    order = {name: i for i, name in enumerate(TITLES)}
    firsts = {key[:2]: i for i, key in reversed(list(enumerate(grouped)))}
    ordered = sorted(grouped, key=lambda key: (firsts[key[0], key[1]], order.get(key[2], len(order))))
    return [_series(key, grouped[key], by_key) for key in ordered]


def _series(
    key: tuple[str, str, str, str], members: list[tuple[PlannedCell, str]], by_key: Mapping[str, Record]
) -> Series:
    measured, reasons = [], []
    for cell, _ in members:
        record = by_key.get(config_key(cell.config))
        if record is None or record.failed:
            continue
        if record.result["status"] == "unsupported":
            reasons.append(record.result["reason"])
            continue
        theory = None
        if cell.config["method"] in CONTROLS:
            theory = by_key.get(config_key(control_config(cell)))
        measured.append(_measured(record, theory))
    ordered = sorted(measured, key=lambda c: (c.n, c.max_d, c.d))
    cell, borrowed = members[0]
    kind = cell.config["problem"]["kind"]
    return Series(
        *key,
        cells=tuple(ordered),
        ran_from=cell.starts[0],
        borrowed=borrowed,
        unsupported=tuple(dict.fromkeys(reasons)),
        problem=kind,
    )


def check_readable(record: Record) -> None:
    """Read a finished record as the report does.

    Raises:
        KeyError, TypeError, ValueError: If it is not what a run writes.
    """
    if "control" not in record.config and record.result["status"] != "unsupported":
        _measured(record, None)


def _measured(record: Record, theory: Record | None) -> MeasuredCell:
    result, problem = record.result, record.result["problem"]
    tuning = result.get("tuning", {"steps": [], "status": []})
    prediction = {} if theory is None or theory.failed else theory.result
    return MeasuredCell(
        key=record.key,
        n=problem["n"],
        max_d=problem["max_d"],
        d=problem["d"],
        trace_over_mu=problem["trace_over_mu"],
        steps=tuple(result["test"]["steps"]),
        letters=result["test"]["status"],
        status=result["status"],
        cap=float(result["test"]["budget"]),
        best=result.get("best_trial") or {},
        edge=result["edge"],
        trials=tuple(trials(record.config["space"])),
        tuning=tuple(tuple(row) for row in tuning["steps"]),
        tuning_letters=tuple(tuning["status"]),
        forwards_per_step=result["forwards_per_step"],
        predicted=prediction.get("steps"),
        theory=prediction.get("theory", ""),
        scatter=tuple(prediction["range"]) if prediction.get("range") else None,
    )


def _slug(text: str) -> str:
    return "".join(ch if ch.isalnum() else "-" for ch in text.lower()).strip("-").replace("---", "-")
