"""How much tuning matters, from the tuning runs themselves. Never imports torch.

While tuning, runs stop at 1.5 times the best median, so whatever costs more than that shows as "more than 1.5".
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from synthetic.analysis.results import MeasuredCell, Series
from synthetic.analysis.tuning import useful_width


@dataclass(frozen=True)
class Sensitivity:
    """Of one method in one family.

    Attributes:
        method: Its label.
        family: Name of the family.
        width: Median factor between the least and the largest step size within 1.5x of the best count.
        untuned: Median over cells of the count at q = 1, other settings in the middle, over the best; inf above 1.5.
        lost: Share of tuning runs that diverged, turned non-finite or stalled.
        settings: Per other setting and value, the median over cells of the best count with it over the best of all.
    """

    method: str
    family: str
    width: float | None
    untuned: float | None
    lost: float | None
    settings: dict[str, dict[float, float]]


def sensitivities(all_series: Iterable[Series]) -> list[Sensitivity]:
    """Of every tuned method in every family, its starts taken together, in the order given."""
    grouped: dict[tuple[str, str], list[MeasuredCell]] = {}
    for s in all_series:
        cells = [c for c in s.cells if "q" in c.best and c.tuning]
        if cells and not s.borrowed:
            grouped.setdefault((s.family, s.label), []).extend(cells)
    return [_sensitivity(family, label, cells) for (family, label), cells in grouped.items()]


def _sensitivity(family: str, label: str, cells: Sequence[MeasuredCell]) -> Sensitivity:
    letters = "".join(text for c in cells for text in c.tuning_letters)
    lost = sum(letters.count(x) for x in "dns") / len(letters) if letters else None
    untuned = [ratio for c in cells if (ratio := _untuned(c)) is not None]
    axes = _axes(cells[0].trials)
    settings = {
        name: {value: statistics.median(_with(c, name, value) for c in cells) for value in values}
        for name, values in axes.items()
        if name != "q" and len(values) > 1
    }
    return Sensitivity(
        method=label,
        family=family,
        width=useful_width(cells),
        untuned=statistics.median(untuned) if untuned else None,
        lost=lost,
        settings=settings,
    )


def _axes(trials: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    return {name: sorted({trial[name] for trial in trials}) for name in trials[0]}


def _untuned(c: MeasuredCell) -> float | None:
    middle = {name: values[len(values) // 2] for name, values in _axes(c.trials).items() if name != "q"}
    for trial, median in zip(c.trials, c.tuning_medians, strict=True):
        if math.isclose(trial["q"], 1.0) and all(trial[name] == value for name, value in middle.items()):
            return median / min(c.tuning_medians)
    return None


def _with(c: MeasuredCell, name: str, value: float) -> float:
    pairs = zip(c.trials, c.tuning_medians, strict=True)
    return min(median for trial, median in pairs if trial[name] == value) / min(c.tuning_medians)
