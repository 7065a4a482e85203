"""What tuning chose in the cells of a series, and how sharp the choice is. Never imports torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from synthetic.analysis.results import MeasuredCell


def tuning_of(cells: Sequence[MeasuredCell]) -> dict[str, Any]:
    """What was chosen: range of step sizes, other settings, cells at an edge, cells that missed, shares of statuses."""
    steps = [c.best["q"] for c in cells if "q" in c.best]
    others: dict[str, Counter[Any]] = {}
    for c in cells:
        for name, value in c.best.items():
            if name not in ("q", "lr") and isinstance(value, int | float):
                others.setdefault(name, Counter())[value] += 1
    runs = Counter("".join(letters for c in cells for letters in c.tuning_letters))
    total = sum(runs.values())
    return {
        "step_size_range": [min(steps), max(steps)] if steps else None,
        "step_size_median": float(np.median(steps)) if steps else None,
        "chosen": {n: {str(v): k for v, k in sorted(c.items())} for n, c in sorted(others.items()) if len(c) > 1},
        "at_edge": [c.key for c in cells if c.edge],
        "censored": [c.key for c in cells if c.status != "reached"],
        "trials": max((len(c.tuning) for c in cells), default=0) or 1,
        "diverged_share": (runs["d"] + runs["n"]) / total if total else None,
        "stalled_share": runs["s"] / total if total else None,
        "useful_width": useful_width(cells),
    }


def h_acts(cell: MeasuredCell) -> bool | None:
    """Whether the chosen trial would take other steps at another floor, on the tuning seeds.

    If it takes the same, both floors lie above every h, and the update is that of momentum alone. None where a cell was
    not tuned over several floors.
    """
    if len({trial.get("floor_ratio") for trial in cell.trials}) < 2 or not cell.best or not cell.tuning:
        return None
    chosen = cell.trials.index(cell.best)
    others = [
        steps
        for i, (trial, steps) in enumerate(zip(cell.trials, cell.tuning, strict=True))
        if i != chosen and {**trial, "floor_ratio": None} == {**cell.best, "floor_ratio": None}
    ]
    return cell.tuning[chosen] not in others


def cells_where_h_acts(cells: Iterable[MeasuredCell]) -> tuple[int, int]:
    """How many of the cells that were tuned over several floors, and how many those are."""
    known = [acts for cell in cells if (acts := h_acts(cell)) is not None]
    return sum(known), len(known)


def useful_width(cells: Sequence[MeasuredCell]) -> float | None:
    """Median over cells of the factor that the step size may be off at a cost of at most 1.5x the best count.

    From the smallest to the largest such step size, the other settings being the chosen ones; a grid that ends before
    the count has risen shows a lower bound.
    """
    widths = []
    for c in cells:
        chosen = [(t["q"], m) for t, m in zip(c.trials, c.tuning_medians, strict=False) if _differs_in_q(t, c.best)]
        good = [q for q, median in chosen if np.isfinite(median) and median <= 1.5 * min(m for _, m in chosen)]
        if good:
            widths.append(max(good) / min(good))
    return float(np.median(widths)) if widths else None


def _differs_in_q(trial: Mapping[str, Any], best: Mapping[str, Any]) -> bool:
    return "q" in best and all(trial[name] == best[name] for name in trial if name != "q")
