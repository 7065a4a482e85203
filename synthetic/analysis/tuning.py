"""What tuning chose in the cells of a series, and how sharp the choice is. Never imports torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from synthetic.analysis.results import Measured


def tuning_of(cells: Sequence[Measured]) -> dict[str, Any]:
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


def useful_width(cells: Sequence[Measured]) -> float | None:
    """Median over cells of the factor that the step size may be off at a cost of at most 1.5x the best count.

    From the smallest to the largest such step size, the other settings being the chosen ones; a grid that ends before
    the count has risen shows a lower bound.
    """
    widths = []
    for c in cells:
        best = [(o["q"], m) for o, m in zip(c.options, c.tuning_medians, strict=False) if _beside(o, c.best)]
        good = [q for q, median in best if np.isfinite(median) and median <= 1.5 * min(m for _, m in best)]
        if good:
            widths.append(max(good) / min(good))
    return float(np.median(widths)) if widths else None


def _beside(option: Mapping[str, Any], best: Mapping[str, Any]) -> bool:
    return "q" in best and all(option[name] == best[name] for name in option if name != "q")
