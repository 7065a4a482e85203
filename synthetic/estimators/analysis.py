"""From records to exponents in B, tendencies, and the answer. Never imports torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from helene.lab.runs.records import Record
from helene.lab.scaling.cells import Cells, median_interval, ratio_of_medians
from helene.lab.scaling.fits import fit_power_law

ASYMPTOTIC_FROM = 64  # B from which exponents are fitted
HALFWAY = 0.25  # between the rates 0 and 1/2: a consistent estimate of finite variance has error exponent -1/2
LARGEST_Z = 6.0  # false alarm 2e-9 a comparison of normal means, some 1000 comparisons; skewness at B = 1 needs room
Tendency = Literal["converges", "stays", "grows", "unclear"]
Group = Literal["optimum", "away", "certain"]


@dataclass(frozen=True)
class Exponent:
    """An exponent with its 95 % interval (bootstrap over groups of replicates)."""

    value: float
    low: float
    high: float

    @property
    def tendency(self) -> Tendency:
        """Of an error with this exponent, where the whole interval lies on one side of `HALFWAY`."""
        if self.high < -HALFWAY:
            return "converges"
        if self.low > HALFWAY:
            return "grows"
        return "stays" if -HALFWAY < self.low and self.high < HALFWAY else "unclear"


@dataclass(frozen=True)
class MeasuredPopulation:
    """One population.

    Attributes:
        record: Its record.
        group: At the optimum of a well-specified model, away from it, or with labels more certain than the model.
        error: Per estimator, the exponent of its relative error in B.
        mean: Exponent of the mean of what A-GNB returns.
        spread: Standard deviation with true labels over that with sampled ones at B = 64: (ratio, low, high).
    """

    record: Record
    group: Group
    error: dict[str, Exponent]
    mean: Exponent
    spread: tuple[float, float, float]

    @property
    def name(self) -> str:
        """For people."""
        c = self.record.config
        parts = [f"{c['model']}, d = {self.record.result['dimension']}"]
        if c["rare"] is not None:
            parts.append(f"rare classes {c['rare']:g}")
        parts.append("certain labels" if c["labels"] == "certain" else f"distance {c['distance']:g}")
        return ", ".join(parts)

    def at(self, estimator: str, quantity: str, batch: int) -> Any:
        """A quantity of `synthetic.estimators.draws.summary`; the median where there is one for each group."""
        place = self.record.config["batches"].index(batch)
        value = self.record.result["estimators"][estimator][place][quantity]
        return float(np.median(value)) if isinstance(value, list) else value


@dataclass(frozen=True)
class ForwardOnly:
    """What h from SPSA gradients tells, against d.

    Attributes:
        records: In the order of d.
        snr: Exponent in d of the signal to noise of one estimate, d >= 64; None where it cannot be fitted.
        fitted: The d that entered.
    """

    records: tuple[Record, ...]
    snr: Exponent | None
    fitted: tuple[int, ...]

    def median(self, quantity: str) -> list[tuple[float, float, float]]:
        """Median over the groups with its interval, per d."""
        return [_median(r.result[quantity]) for r in self.records]


@dataclass(frozen=True)
class Findings:
    """All of it, with the verdict and the sentence."""

    populations: tuple[MeasuredPopulation, ...]
    forward: ForwardOnly
    verdict: str
    answer: str


def findings_of(records: Iterable[Record]) -> Findings:
    """Fit, judge and answer; failed records are left out.

    Raises:
        ValueError: If no population is left.
    """
    finished = [r for r in records if not r.failed]
    rows = tuple(_measured(r) for r in finished if r.config["kind"] == "batch")
    if not rows:
        raise ValueError("no population was measured; run `helene scaling agnb` again, its cells failed")
    forward = _forward([r for r in finished if r.config["kind"] == "forward_only"])
    verdict = _verdict(rows)
    return Findings(rows, forward, verdict, _answer(rows, forward, verdict))


def of_group(rows: Sequence[MeasuredPopulation], group: Group) -> list[MeasuredPopulation]:
    """The populations of a group."""
    return [row for row in rows if row.group == group]


def _measured(record: Record) -> MeasuredPopulation:
    config, result = record.config, record.result
    group: Group = "certain" if config["labels"] == "certain" else "away" if config["distance"] > 0 else "optimum"
    estimators = result["estimators"]
    at = config["batches"].index(ASYMPTOTIC_FROM)
    return MeasuredPopulation(
        record,
        group,
        error={name: _exponent(config["batches"], [x["error"] for x in rows]) for name, rows in estimators.items()},
        mean=_exponent(config["batches"], [x["mean"] for x in estimators["returned"]]),
        spread=ratio_of_medians(estimators["returned"][at]["sd"], estimators["sampled"][at]["sd"], num_bootstrap=500),
    )


def _exponent(x: Sequence[float], samples: Sequence[Sequence[float]], name: str = "B") -> Exponent:
    cells = Cells.of({name: x}, samples)
    fit = fit_power_law(cells.where(cells.columns[name] >= ASYMPTOTIC_FROM), [name], num_bootstrap=500)
    return Exponent(fit.exponents[name], *fit.intervals[name])


def _median(samples: Sequence[float]) -> tuple[float, float, float]:
    """`median_interval` takes logarithms; correlations may be negative, so they are shifted above zero."""
    shifted = median_interval([2.0 + value for value in samples], num_bootstrap=500)
    return shifted[0] - 2.0, shifted[1] - 2.0, shifted[2] - 2.0


def _forward(records: Sequence[Record]) -> ForwardOnly:
    ordered = tuple(sorted(records, key=lambda r: r.config["d"]))
    usable = [r for r in ordered if min(r.result["snr"]) > 0 and r.config["d"] >= ASYMPTOTIC_FROM]
    dims = tuple(r.config["d"] for r in usable)
    if len(dims) < 3:
        return ForwardOnly(ordered, None, ())
    return ForwardOnly(ordered, _exponent(dims, [r.result["snr"] for r in usable], "d"), dims)


def _verdict(rows: Sequence[MeasuredPopulation]) -> str:
    """Of the statement that what Algorithm 2 returns tends to the Hessian's diagonal."""
    if any(x["z"] > LARGEST_Z for row in rows for xs in row.record.result["estimators"].values() for x in xs):
        return "broken_instrument"
    tendencies = {row.error["returned"].tendency for row in rows}
    if tendencies == {"converges"}:
        return "consistent"
    return "not_consistent" if "converges" not in tendencies and tendencies != {"unclear"} else "not_resolved"


def _answer(rows: Sequence[MeasuredPopulation], forward: ForwardOnly, verdict: str) -> str:
    if verdict == "broken_instrument":
        return (
            "No answer: drawn means differ from their exact values by more than chance allows, so the draws are wrong."
        )
    opening = {
        "consistent": "What A-GNB returns, B ĝ⊙ĝ, tends to the Hessian's diagonal as B grows.",
        "not_consistent": "What A-GNB returns, B ĝ⊙ĝ, does not tend to the Hessian's diagonal as B grows.",
        "not_resolved": "Whether what A-GNB returns, B ĝ⊙ĝ, tends to the Hessian's diagonal is not settled.",
    }[verdict]
    parts = []
    places: tuple[tuple[Group, str], ...] = (
        ("optimum", "At the optimum of a well-specified model"),
        ("away", "Away from it"),
        ("certain", "With certain labels"),
    )
    for group, place in places:
        some = of_group(rows, group)
        if some:
            parts.append(f"{place} its relative error {_tendency_of(some, 'returned')}")
    optimum = of_group(rows, "optimum")
    if optimum:
        parts.append(f"At the optimum the relative error of per-sample squares {_tendency_of(optimum, 'squares')}")
    if forward.records:
        last = forward.records[-1].config["d"]
        rank = forward.median("rank")[-1]
        parts.append(
            f"From SPSA gradients its ranks correlate {round(rank[0], 2) + 0.0:.2f} with the true ones at d = {last}"
        )
    return " ".join([opening, *(f"{part}." for part in parts)])


def _tendency_of(rows: Sequence[MeasuredPopulation], estimator: str) -> str:
    """What an estimator's error does in most populations, with the median exponent and how many agree."""
    fits = [row.error[estimator] for row in rows]
    counts = {word: sum(f.tendency == word for f in fits) for word in ("converges", "stays", "grows", "unclear")}
    word = max(counts, key=lambda name: counts[name])
    verb = {"converges": "shrinks", "stays": "stays", "grows": "grows", "unclear": "changes"}[word]
    middle = float(np.median([f.value for f in fits])) + 0.0
    return f"{verb} ({_power(middle)}, {counts[word]} of {len(fits)} populations)"


def _power(exponent: float) -> str:
    """B to a power, two places, no minus before a zero."""
    return f"B^{round(exponent, 2) + 0.0:.2f}".replace("-", "−")
