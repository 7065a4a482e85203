"""The figures of the report: two cuts through the grid for each family and start. Never imports torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from helene.lab.report.drawing import Drawing
from helene.lab.report.method_colours import places_of
from helene.lab.scaling.scaling_figure import ScalingSeries, scaling_figure
from synthetic.analysis.exponents import LEAST_D
from synthetic.analysis.least_steps import least_line
from synthetic.analysis.results import FAMILIES
from synthetic.analysis.verdicts import Analysed
from synthetic.design import FIRST_ORDER, TARGETS, known
from synthetic.report.words import at

Pictures = dict[tuple[str, str], list[tuple[str, Drawing, str]]]
_SETTINGS = ("k ", "beta", "low floors")  # variants that differ from the plain method in one setting alone


def pictures_of(analysed: Sequence[Analysed]) -> Pictures:
    """All cuts of all families and starts."""
    out: Pictures = {}
    for family, start in dict.fromkeys((a.series.family, a.series.start) for a in analysed):
        rows = [a for a in analysed if at(a, family, start) and not a.series.borrowed]
        rows = [a for a in rows if known()[a.series.method].drawn and not a.series.variant.startswith(_SETTINGS)]
        zeroth = [a for a in rows if a.series.method not in FIRST_ORDER]
        first = [a for a in rows if a.series.method in FIRST_ORDER]
        title = FAMILIES.get(family, family)
        drawn = [(f"zeroth-{name}", d, c) for name, d, c in _cuts(zeroth, f"{title}: losses only")]
        drawn += [(f"first-{name}", d, c) for name, d, c in _cuts(first, f"{title}: gradients or Hessians")]
        if drawn:
            out[family, start] = drawn
    return out


def _cuts(rows: Sequence[Analysed], title: str) -> list[tuple[str, Drawing, str]]:
    """Figures of a family and start: steps against n at one width, and against the width at one n.

    Args:
        rows: The methods to draw.
        title: Of the figures.

    Returns:
        (name, drawing, caption) of each cut that has three places or more; one figure against the layers' width where d
        never varies.
    """
    cells = {(c.n, c.max_d, c.d) for a in rows for c in a.series.cells}
    colours = places_of(a.series.method for a in rows)
    out = []
    for axis, held in (("n", "w"), ("w", "n")):
        level = _best_level(cells, held)
        if level is None:
            continue
        drawn = [s for a in rows if (s := _series(a, axis, held, level, colours[a.series.method])) is not None]
        if drawn:
            axis_name = "number of layers n" if axis == "n" else "width w"
            other = f"w = {level}" if axis == "n" else f"n = {level}"
            slope = "the exponent of d" if axis == "n" else "the sum of both exponents"
            caption = (
                f"Steps to target against the {axis_name} at {other}: medians, seeds (dots) and the law that the "
                f"conclusions rest on. Hollow: cells that it leaves out. The slope is {slope}, with its 95 % interval. "
                f"Below: local slopes."
            )
            if any(one.predicted_slope is not None for one in drawn):
                caption += " Dashed: what theory predicts for the control."
            if len({a.series.method for a in rows}) < len(rows):
                caption += " One colour is one method: of its two variants the second has dashes."
            bound = None
            if all(a.series.problem == "quadratic" and a.series.method not in FIRST_ORDER for a in rows):
                bound = ("least for one difference a step", *least_line(cells, held, level, TARGETS["zeroth"]))
                caption += (
                    " Dotted: (1 − target) d steps. Every method that reads one difference of losses a step needs "
                    "them in the mean over minimisers. One direction per layer reads n differences."
                )
            figure = scaling_figure(drawn, xlabel=f"{axis_name} ({other})", title=title, bound=bound)
            out.append((f"{axis}-cut", figure, caption))
    return out


def _best_level(cells: set[tuple[int, int, int]], held: str) -> int | None:
    """The value of the held axis with most places along the other one, the middle one of several; None below three."""
    at = 1 if held == "w" else 0
    counts: dict[int, int] = {}
    for cell in cells:
        counts[cell[at]] = counts.get(cell[at], 0) + 1
    most = max(counts.values(), default=0)
    best = sorted(level for level, count in counts.items() if count == most)
    return best[len(best) // 2] if most >= 3 else None


def _series(a: Analysed, axis: str, held: str, level: int, colour: int) -> ScalingSeries | None:
    series = a.series
    columns = {name: np.array(values) for name, values in series.columns.items()}
    keep = np.flatnonzero(columns[held] == level)
    if keep.size < 3:
        return None
    keep = keep[np.argsort(columns[axis][keep])]
    places = {name: values[keep] for name, values in columns.items()}
    outside = columns["d"][keep] < LEAST_D if a.main.subset != "all" else np.zeros(keep.size, bool)
    law, weights = a.main.law, {"d": 1.0} if axis == "n" else {"max_d": 1.0, "d": 1.0}
    predicted = None
    if a.control is not None and "d" in a.control.predicted:
        predicted = sum(a.control.predicted.get(name, 0.0) for name in weights)
    usable = law is not None and "d" in law.exponents
    fitted, band = np.full(keep.size, np.nan), None
    if usable and law is not None:
        fitted = np.where(outside, np.nan, law.predict(places))
        band = [np.where(outside, np.nan, side) for side in law.band(places)]
    return ScalingSeries(
        label=series.label,
        x=places[axis].tolist(),
        samples=[[max(s, 1.0) for s in series.cells[i].steps] for i in keep],
        caps=[series.cells[i].cap for i in keep],
        excluded=outside.tolist(),
        fitted=fitted.tolist(),
        band=(band[0].tolist(), band[1].tolist()) if band is not None else None,
        slope=law.combination(weights) if usable and law is not None else None,
        predicted_slope=predicted,
        colour=colour,
    )
