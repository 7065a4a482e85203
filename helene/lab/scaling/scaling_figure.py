"""The figure of a scaling law."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from helene.lab.report.drawing import (
    DASHES,
    INK,
    MARKERS,
    PALETTE,
    REFERENCE,
    Drawing,
    finish,
    legend_below,
    new_figure,
    plain_log_ticks,
    style,
)
from helene.lab.report.pages import two_places
from helene.lab.scaling.cells import Array, log_medians

YLABEL = "steps to target"


@dataclass(frozen=True)
class ScalingSeries:
    """One method in a scaling figure.

    Attributes:
        label: Its name.
        x: Positive, one per cell, any order.
        samples: Counts per cell and seed; inf is a miss.
        caps: Where a cell's median is inf, it is drawn hollow with an arrow up at this.
        excluded: Cells left out of the fit, drawn hollow.
        fitted: Fitted T at each x (drawn as a line), or empty.
        band: (low, high) of the fit at each x.
        slope: Fitted slope with its interval (slope, low, high), for the legend.
        predicted_slope: Drawn dashed through the middle of the medians.
        colour: Its place in the palette, by which one thing has one colour in several figures; None is its place among
            the series. Series of one colour differ in marker and dashes.
    """

    label: str
    x: Sequence[float]
    samples: Sequence[Sequence[float]]
    caps: Sequence[float] = ()
    excluded: Sequence[bool] = ()
    fitted: Sequence[float] = ()
    band: tuple[Sequence[float], Sequence[float]] | None = None
    slope: tuple[float, float, float] | None = None
    predicted_slope: float | None = None
    colour: int | None = None


def scaling_figure(
    series: Sequence[ScalingSeries],
    *,
    xlabel: str,
    title: str = "",
    bound: tuple[str, Sequence[float], Sequence[float]] | None = None,
) -> Drawing:
    """Log-log figure: seeds, medians, fit with band, predicted slope dashed; local slopes in a panel below.

    ``bound`` is a label, x and y of a dotted line of its own.

    Hollow markers are cells outside the fit; with an arrow, cells whose median missed the target, at their cap. The
    legend gives each fitted slope with its interval.

    Raises:
        ValueError: If there is no series, or a series' lists differ in length.
    """
    if not series:
        raise ValueError("series must hold at least one ScalingSeries, got none")
    with style():
        figure = new_figure(4.9)
        top, below = figure.subplots(2, 1, sharex=True, height_ratios=[3.2, 1])
        colours = [index if one.colour is None else one.colour for index, one in enumerate(series)]
        for index, one in enumerate(series):
            _draw_scaling(top, below, one, index, colours[index], again=colours[:index].count(colours[index]))
        if bound is not None:
            label, x, y = bound
            top.plot(x, y, linestyle=":", color=INK, linewidth=1.4, label=label)
        top.set(xscale="log", yscale="log", ylabel=YLABEL, title=title)
        plain_log_ticks(top.yaxis)
        below.set(xlabel=xlabel, ylabel="local slope")
        plain_log_ticks(below.xaxis, sorted({float(x) for one in series for x in one.x}))
        below.margins(y=0.15)
        top.tick_params(labelbottom=False)
        legend_below(figure, top, always=True)
        dotted = f" Dotted: {bound[0]}." if bound is not None else ""
        return finish(figure, _scaling_alt(series, xlabel) + dotted)


def _draw_scaling(top: Axes, below: Axes, one: ScalingSeries, index: int, place: int, again: int) -> None:
    colour, marker = PALETTE[place % len(PALETTE)], MARKERS[(place + 4 * again) % len(MARKERS)]
    dash = DASHES[again % len(DASHES)]
    if len(one.samples) != len(one.x) or any(
        len(list_) not in (0, len(one.x)) for list_ in (one.caps, one.excluded, one.fitted)
    ):
        raise ValueError(f"series {one.label!r} must give x, samples, caps, excluded and fitted for the same cells")
    order = np.argsort(np.asarray(one.x, float), kind="stable")
    x = np.asarray(one.x, float)[order]
    cells = [np.asarray(one.samples[i], float) for i in order]
    caps = np.asarray(one.caps, float)[order] if len(one.caps) else np.full(len(x), np.nan)
    outside = np.asarray(one.excluded, bool)[order] if len(one.excluded) else np.zeros(len(x), bool)
    logs = np.array([float(log_medians(seeds)) for seeds in cells])
    missed = np.isinf(logs)
    # Seeds stand beside their median, each series on its own side, so that neither hides the other.
    aside = 1.07 ** ((index // 2 + 1) * (-1) ** index)
    seeds_x = np.concatenate([np.full(len(seeds), at * aside) for at, seeds in zip(x, cells, strict=True)])
    seeds_y = np.concatenate(cells)
    seen = np.isfinite(seeds_y)
    top.plot(seeds_x[seen], seeds_y[seen], "o", color=colour, alpha=0.5, markersize=2.2, markeredgewidth=0)
    if len(one.fitted):
        top.plot(x, np.asarray(one.fitted, float)[order], color=colour, linewidth=1.4, linestyle=dash)
    if one.band is not None:
        low, high = (np.asarray(side, float)[order] for side in one.band)
        top.fill_between(x, low, high, color=colour, alpha=0.16, linewidth=0)
    inside = ~missed & ~outside
    top.plot(x[inside], np.exp(logs[inside]), marker, color=colour, label=legend_label(one), markersize=5.5)
    hollow: dict[str, Any] = {"color": colour, "markerfacecolor": "none", "markeredgewidth": 1.2, "markersize": 5.5}
    top.plot(x[outside & ~missed], np.exp(logs[outside & ~missed]), marker, **hollow)
    top.plot(x[missed], caps[missed], marker, **hollow)
    for at, cap in zip(x[missed], caps[missed], strict=True):
        top.annotate(
            "",
            xy=(at, cap),
            xytext=(0, 15),
            textcoords="offset points",
            arrowprops={"arrowstyle": "<|-", "color": colour, "shrinkA": 0, "shrinkB": 4, "linewidth": 1.2},
        )
    if one.predicted_slope is not None and inside.any():
        middle_x, middle_y = np.log(x[inside]).mean(), logs[inside].mean()
        ends = np.array([x.min(), x.max()])
        line = np.exp(middle_y + one.predicted_slope * (np.log(ends) - middle_x))
        top.plot(ends, line, linestyle=REFERENCE, color=colour, linewidth=1.2)
    middles, slopes = neighbour_slopes(x[~missed], logs[~missed])
    below.plot(middles, slopes, marker=marker, color=colour, linewidth=1, markersize=4, linestyle=dash)
    if one.predicted_slope is not None:
        below.axhline(one.predicted_slope, linestyle=REFERENCE, color=colour, linewidth=1.2)


def legend_label(one: ScalingSeries) -> str:
    """The name, the slope with its interval, which breaks over no lines, and the predicted slope."""
    label = one.label
    if one.slope is not None:
        value, low, high = map(two_places, one.slope)
        label += "   " + f"{value} [{low}, {high}]".replace(" ", "\N{NO-BREAK SPACE}")
    if one.predicted_slope is not None:
        label += f", predicted {two_places(one.predicted_slope)} (dashed)"
    return label


def neighbour_slopes(x: Array, logs: Array) -> tuple[Array, Array]:
    """(Geometric middles, slopes) between neighbouring x; cells of equal x are averaged in log space."""
    places = np.unique(x)
    if len(places) < 2:
        return np.empty(0), np.empty(0)
    means = np.array([logs[x == place].mean() for place in places])
    return np.sqrt(places[1:] * places[:-1]), np.diff(means) / np.diff(np.log(places))


def _scaling_alt(series: Sequence[ScalingSeries], xlabel: str) -> str:
    slopes = [f"{s.label} {two_places(s.slope[0])}" for s in series if s.slope is not None]
    slopes_in_words = f"; fitted slopes: {', '.join(slopes)}" if slopes else ""
    return f"Log-log plot of {YLABEL} against {xlabel} for {', '.join(s.label for s in series)}{slopes_in_words}."
