"""From records to the numbers of a cell: mean and interval over seeds, costs to the target, bytes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from helene.lab.runs.store import Record
from llm_bench.protocol.speed import had_the_card_alone

OF_A_TABLE = ("model", "fingerprint", "dtype", "products")  # what the rows of one table have in common
OF_A_MEAN = (*OF_A_TABLE, "steps", "lr")  # and the runs of one mean


@dataclass(frozen=True)
class Numbers:
    """One cell measured.

    Attributes:
        values: Test metric of each seed, percent.
        mean: Of these.
        low: End of the 95 % interval over seeds (t distribution, cut at 0 and 100); None with one seed.
        high: The other end.
        option_loss: Mean test option loss (nats).
        auc: Mean test AUC, where there are two options.
        target: Dev metric that ended the count, or None.
        steps: Median steps to the target; inf where most runs missed it.
        forwards: Median forwards to it.
        seconds: Median training seconds to it; None where all runs shared their card with others.
        training_seconds: Median of the whole run, likewise.
        speed: Median tokens a second of training, padding left out.
        bytes: Peak of a step, where the device counts: `least_peak`.
        statuses: Of the runs.
        test_rows: Number of rows of the test set.
    """

    values: tuple[float, ...]
    mean: float
    low: float | None
    high: float | None
    option_loss: float = math.nan
    auc: float | None = None
    target: float | None = None
    steps: float | None = None
    forwards: float | None = None
    seconds: float | None = None
    training_seconds: float | None = None
    speed: float | None = None
    bytes: int | None = None
    statuses: tuple[str, ...] = ()
    test_rows: int = 0

    @property
    def shown_interval(self) -> tuple[float, float] | None:
        """Over seeds; that of the test rows' sampling where no seed changes the result; None where neither is known."""
        if self.over_rows:
            return wilson(self.mean, self.test_rows) if self.test_rows else None
        assert self.low is not None
        assert self.high is not None
        return self.low, self.high

    @property
    def over_rows(self) -> bool:
        """Whether the shown interval is that of the test rows' sampling."""
        least = 1e-6  # a mean of equal values differs from them in rounding
        return self.low is None or max(self.values) - min(self.values) < least


def numbers(records: Sequence[Record], tuning: Sequence[Record] = ()) -> Numbers | None:
    """Numbers of a cell's test runs; None where none has a test metric. One without it may have missed the target.

    Args:
        records: The test runs.
        tuning: The cell's tuning runs, for bytes alone.

    Raises:
        ValueError: If they are not runs of one model, precision, length and step size, one a seed.
    """
    tested = [record for record in records if has_metric(record)]
    check_seeds(tested)
    results, alone = ([r.result for r in found] for found in (tested, filter(had_the_card_alone, tested)))
    if not results:
        return None
    values = [100.0 * result["test"]["metric"] for result in results]
    low, high = interval(values)
    if low is not None and high is not None:
        low, high = max(0.0, low), min(100.0, high)
    aucs = [result["test"]["auc"] for result in results if result["test"]["auc"] is not None]
    targets = [found for found in map(target_of, records) if found]
    seconds = [result["training_seconds"] for result in alone if result.get("training_seconds") is not None]
    speeds = [r["tokens"] / r["training_seconds"] for r in alone if r.get("tokens") and r.get("training_seconds")]
    return Numbers(
        tuple(values),
        float(np.mean(values)),
        low,
        high,
        float(np.mean([result["test"]["option_loss"] for result in results])),
        float(np.mean(aucs)) if aucs else None,
        targets[0]["value"] if targets else None,
        _median([t["steps"] for t in targets]),
        _median([t["forwards"] for t in targets]),
        _median([t["training_seconds"] for t in map(target_of, filter(had_the_card_alone, records)) if t]),
        _median(seconds),
        _median(speeds),
        least_peak([*records, *tuning]),
        tuple(result["status"] for result in results),
        int(results[0]["test"].get("num_examples") or 0),
    )


def least_peak(records: Iterable[Record], phase: str = "step") -> int | None:
    """The least peak of the runs of a method in one setting: what it needs by itself; None where no device counted.

    A test run holds the best weights so far besides, and a run in an old process what those before it had left.
    """
    peaks = [(record.result.get("peak_bytes") or {}).get(phase) for record in records]
    return min(filter(None, peaks), default=None)


def target_of(record: Record) -> dict[str, Any] | None:
    """What a run took to its target; inf where it ended before any result, as for want of memory; None without one."""
    aim, found = record.config.get("target"), record.result.get("target")
    if found is None and aim is not None:
        return {"value": aim, **dict.fromkeys(("steps", "forwards", "training_seconds"), math.inf)}
    return found


def has_metric(record: Record) -> bool:
    """Whether it has a test metric; of no test rows it is nan."""
    return math.isfinite((record.result.get("test") or {}).get("metric", math.nan))


def check_alike(records: Iterable[Record], names: Sequence[str], where: str = "") -> None:
    """Refuse runs that differ in a setting: two trainings of a model may have one name.

    Raises:
        ValueError: If they do.
    """
    known = list(records)
    for name in names:
        found = sorted({str(record.config.get(name)) for record in known})
        if len(found) > 1:
            raise ValueError(
                f"{where or _named(known[0])} has runs of {len(found)} values of {name}, {found[0]} and {found[1]}, "
                "which no mean or table may mix; keep each in a file of its own"
            )


def check_seeds(records: Iterable[Record], where: str = "") -> None:
    """Refuse runs that are not those of one mean, such as two of one seed on different devices.

    Raises:
        ValueError: If they differ in a setting of `OF_A_MEAN`, or a seed occurs twice.
    """
    known = list(records)
    check_alike(known, OF_A_MEAN, where)
    seeds = Counter((record.config.get("seed"), record.config.get("data_seed")) for record in known)
    for (seed, data_seed), count in seeds.items():
        if count > 1:
            raise ValueError(
                f"{where or _named(known[0])} has {count} runs of seed {seed} (of the data {data_seed}), each of which "
                "would count as a seed of its own; keep each in a file of its own"
            )


def _named(record: Record) -> str:
    return "{method} on {task} ({kind})".format_map({"method": "", "task": "", "kind": "", **record.config})


def interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Student's 95 % interval for the mean over seeds; it knows nothing of the test set's own sampling error."""
    if len(values) < 2:
        return None, None
    if max(values) - min(values) < 1e-9:  # equal but for the rounding of percents
        return values[0], values[0]
    from scipy.stats import t

    mean, error = float(np.mean(values)), float(np.std(values, ddof=1)) / math.sqrt(len(values))
    half = float(t.ppf(0.975, len(values) - 1)) * error
    return mean - half, mean + half


def wilson(percent: float, rows: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share, in percent; of scores between 0 and 1 that are no yes or no, it is wider."""
    z, p = 1.959964, percent / 100.0
    middle = (p + z * z / (2 * rows)) / (1 + z * z / rows)
    half = z * math.sqrt(p * (1 - p) / rows + z * z / (4 * rows * rows)) / (1 + z * z / rows)
    return 100.0 * (middle - half), 100.0 * (middle + half)


def _median(values: Sequence[float]) -> float | None:
    """A miss is infinite and enters: numpy's would give nan between inf and inf."""
    if not values:
        return None
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2 or math.isinf(ordered[middle]):
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2
