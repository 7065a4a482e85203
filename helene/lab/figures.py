"""Figures: plain data in, SVG and PNG out, the same bytes every time. Never imports torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from helene.lab.cells import Array, log_medians
from helene.lab.drawing import DASHES, INK, MARKERS, PALETTE, WIDTH, Drawing, finish, new_figure, style

__all__ = [
    "Drawing",
    "Line",
    "ScalingSeries",
    "bar_figure",
    "heat_map",
    "histogram",
    "line_figure",
    "scaling_figure",
]

_PREDICTED = (0, (4, 3))


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


def scaling_figure(
    series: Sequence[ScalingSeries],
    *,
    xlabel: str,
    ylabel: str = "steps to target",
    title: str = "",
    local_slopes: bool = True,
) -> Drawing:
    """Log-log figure: seeds, medians, fit with band, predicted slope dashed; local slopes in a panel below.

    Hollow markers are cells outside the fit; with an arrow, cells whose median missed the target, at their cap. The
    legend gives each fitted slope with its interval.

    Raises:
        ValueError: If there is no series, or a series' lists differ in length.
    """
    if not series:
        raise ValueError("series must hold at least one ScalingSeries, got none")
    with style():
        figure = new_figure(4.9 if local_slopes else 3.7)
        if local_slopes:
            top, below = figure.subplots(2, 1, sharex=True, height_ratios=[3.2, 1])
        else:
            top, below = figure.subplots(), None
        for index, one in enumerate(series):
            _draw_scaling(top, below, one, index)
        top.set(xscale="log", yscale="log", ylabel=ylabel, title=title)
        _plain_log_ticks(top.yaxis)
        bottom = top if below is None else below
        bottom.set_xlabel(xlabel)
        _plain_log_ticks(bottom.xaxis, sorted({float(x) for one in series for x in one.x}))
        if below is not None:
            below.set_ylabel("local slope")
            below.margins(y=0.15)
            top.tick_params(labelbottom=False)
        handles, labels = top.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower left", ncols=_columns(labels))
        return finish(figure, _scaling_alt(series, xlabel, ylabel))


def _draw_scaling(top: Axes, below: Axes | None, one: ScalingSeries, index: int) -> None:
    colour, marker = PALETTE[index % len(PALETTE)], MARKERS[index % len(MARKERS)]
    order = np.argsort(np.asarray(one.x, float), kind="stable")
    x = np.asarray(one.x, float)[order]
    cells = [np.asarray(one.samples[i], float) for i in order]
    if len(one.samples) != len(x) or any(
        len(list_) not in (0, len(x)) for list_ in (one.caps, one.excluded, one.fitted)
    ):
        raise ValueError(f"series {one.label!r} must give x, samples, caps, excluded and fitted for the same cells")
    caps = np.asarray(one.caps, float)[order] if len(one.caps) else np.full(len(x), np.nan)
    outside = np.asarray(one.excluded, bool)[order] if len(one.excluded) else np.zeros(len(x), bool)
    logs = np.array([float(log_medians(seeds)) for seeds in cells])
    missed = np.isinf(logs)
    label = one.label
    if one.slope is not None:
        label += "   {:.2f} [{:.2f}, {:.2f}]".format(*one.slope)
    if one.predicted_slope is not None:
        label += f", predicted {one.predicted_slope:g} (dashed)"
    # Seeds stand beside their median, each series on its own side, so that neither hides the other.
    aside = 1.07 ** ((index // 2 + 1) * (-1) ** index)
    seeds_x = np.concatenate([np.full(len(seeds), at * aside) for at, seeds in zip(x, cells, strict=True)])
    seeds_y = np.concatenate(cells)
    seen = np.isfinite(seeds_y)
    top.plot(seeds_x[seen], seeds_y[seen], "o", color=colour, alpha=0.5, markersize=2.2, markeredgewidth=0)
    if len(one.fitted):
        top.plot(x, np.asarray(one.fitted, float)[order], color=colour, linewidth=1.4)
    if one.band is not None:
        low, high = (np.asarray(side, float)[order] for side in one.band)
        top.fill_between(x, low, high, color=colour, alpha=0.16, linewidth=0)
    inside = ~missed & ~outside
    top.plot(x[inside], np.exp(logs[inside]), marker, color=colour, label=label, markersize=5.5)
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
        top.plot(ends, line, linestyle=_PREDICTED, color=colour, linewidth=1.2)
    if below is not None:
        middles, slopes = _slopes(x[~missed], logs[~missed])
        below.plot(middles, slopes, marker=marker, color=colour, linewidth=1, markersize=4)
        if one.predicted_slope is not None:
            below.axhline(one.predicted_slope, linestyle=_PREDICTED, color=colour, linewidth=1.2)


def _slopes(x: Array, logs: Array) -> tuple[Array, Array]:
    """Slopes between neighbouring x; cells of equal x are averaged in log space."""
    places = np.unique(x)
    if len(places) < 2:
        return np.empty(0), np.empty(0)
    means = np.array([logs[x == place].mean() for place in places])
    return np.sqrt(places[1:] * places[:-1]), np.diff(means) / np.diff(np.log(places))


def _scaling_alt(series: Sequence[ScalingSeries], xlabel: str, ylabel: str) -> str:
    slopes = [f"{s.label} {s.slope[0]:.2f}" for s in series if s.slope is not None]
    said = f"; fitted slopes: {', '.join(slopes)}" if slopes else ""
    return f"Log-log plot of {ylabel} against {xlabel} for {', '.join(s.label for s in series)}{said}."


def _short(value: float, _: Any = None) -> str:
    """A number of few characters: 0.02, 1, 250, 4k, 1.5M."""
    size = abs(value)
    for limit, factor, unit in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if size >= limit:
            return f"{value / factor:.3g}{unit}"
    return f"{value:.0f}" if size >= 1000 else f"{value:.3g}"


def _plain_log_ticks(axis: Any, places: Sequence[float] = ()) -> None:
    """Ticks at the measured places when they are few, else at 1, 2, 5 times powers of ten; plain numbers."""
    low, high = axis.get_view_interval()
    decades = math.log10(high / low)
    if 0 < len(places) <= 9:
        axis.set_ticks(list(places))
    elif decades < 4:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 2.2 else (1, 3)))
    axis.set_major_formatter(FuncFormatter(_short))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def heat_map(
    rows: Sequence[float],
    columns: Sequence[float],
    values: Sequence[Sequence[float]],
    *,
    row_label: str,
    column_label: str,
    value_label: str,
    title: str = "",
    log: bool = True,
    at_least: Sequence[Sequence[bool]] | None = None,
) -> Drawing:
    """Grid of numbers (n x w), coloured and written; nan is an empty cell, ``at_least`` marks censored ones with >=."""
    grid = np.asarray(values, float)
    if grid.shape != (len(rows), len(columns)):
        raise ValueError(f"values must have shape ({len(rows)}, {len(columns)}), got {grid.shape}")
    censored = np.zeros(grid.shape, bool) if at_least is None else np.asarray(at_least, bool)
    finite = grid[np.isfinite(grid)]
    low, high = (finite.min(), finite.max()) if finite.size else (1.0, 1.0)
    norm = LogNorm(low, max(high, low * 1.01)) if log else Normalize(low, max(high, low + 1e-12))
    colours = matplotlib.colormaps["viridis"]
    with style():
        figure = new_figure(1.1 + 0.42 * len(rows), min(WIDTH, 1.3 + 0.72 * len(columns)))
        axes = figure.subplots()
        for i, j in np.ndindex(*grid.shape):
            if not np.isfinite(grid[i, j]):
                continue
            face = colours(norm(grid[i, j]))
            box = matplotlib.patches.Rectangle(
                (j - 0.47, i - 0.46), 0.94, 0.92, facecolor=face, hatch="////" if censored[i, j] else None, linewidth=0
            )
            axes.add_patch(box)
            luminance = np.dot(face[:3], [0.299, 0.587, 0.114])
            text = ("≥" if censored[i, j] else "") + _short(float(grid[i, j]))
            ink = "black" if luminance > 0.45 else "white"
            box_of_text = {"facecolor": face, "edgecolor": "none", "pad": 1.2}
            axes.text(j, i, text, ha="center", va="center", color=ink, fontsize=8.5, bbox=box_of_text)
        axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(-0.5, len(rows) - 0.5), xlabel=column_label, ylabel=row_label)
        axes.set_xticks(range(len(columns)), [_short(c) for c in columns])
        axes.set_yticks(range(len(rows)), [_short(r) for r in rows])
        axes.grid(visible=False)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_title(title or value_label)
        span = f"from {_short(low)} to {_short(high)}" if finite.size else "empty"
        return finish(figure, f"Grid of {value_label} by {row_label} and {column_label}, {span}.")


@dataclass(frozen=True)
class Line:
    """One curve of :func:`line_figure`; ``band`` is (low, high) at each x."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    band: tuple[Sequence[float], Sequence[float]] | None = None
    style: Literal["solid", "dashed", "dotted", "points"] = "solid"


def line_figure(
    lines: Sequence[Line],
    *,
    xlabel: str,
    ylabel: str,
    title: str = "",
    xlog: bool = False,
    ylog: bool = False,
    marks: Mapping[str, float] | None = None,
) -> Drawing:
    """Curves with a legend; ``marks`` are labelled horizontal lines. What is not finite leaves a gap."""
    with style():
        figure = new_figure(3.7)
        axes = figure.subplots()
        for index, line in enumerate(lines):
            colour = PALETTE[index % len(PALETTE)]
            dash = {"solid": "-", "dashed": DASHES[1], "dotted": DASHES[3], "points": "none"}[line.style]
            few = len(line.x) <= 30
            marker = MARKERS[index % len(MARKERS)] if line.style == "points" or few else ""
            y = np.where(np.isfinite(np.asarray(line.y, float)), line.y, np.nan)
            axes.plot(line.x, y, linestyle=dash, marker=marker, color=colour, label=line.label, markersize=4)
            if line.band is not None:
                axes.fill_between(line.x, *line.band, color=colour, alpha=0.16, linewidth=0)
        axes.set(xlabel=xlabel, ylabel=ylabel, title=title)
        if xlog:
            axes.set_xscale("log")
            _plain_log_ticks(axes.xaxis)
        if ylog:
            axes.set_yscale("log")
            _plain_log_ticks(axes.yaxis)
        for label, level in (marks or {}).items():
            axes.axhline(level, linestyle=_PREDICTED, color=INK, alpha=0.65, linewidth=1.1)
            axes.annotate(
                label,
                (1, level),
                xycoords=("axes fraction", "data"),
                xytext=(-3, 3),
                textcoords="offset points",
                ha="right",
                fontsize=7.5,
            )
        _legend_below(figure, axes)
        return finish(figure, f"{ylabel} against {xlabel} for {', '.join(line.label for line in lines)}.")


def _legend_below(figure: Any, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > 1:
        figure.legend(handles, labels, loc="outside lower left", ncols=_columns(labels))


def _columns(labels: Sequence[str]) -> int:
    """As many columns of a legend as fit the width."""
    return min(len(labels), max(1, int(84 / (max(map(len, labels)) + 8))))


def bar_figure(
    labels: Sequence[str],
    groups: Mapping[str, Sequence[float]],
    *,
    ylabel: str,
    title: str = "",
    intervals: Mapping[str, Sequence[tuple[float, float]]] | None = None,
    log: bool = False,
) -> Drawing:
    """Horizontal bars, one set per label and one bar of it per group, values written, with optional intervals.

    ``ylabel`` names the values, which run along the horizontal axis. A value that is not finite has no bar and reads
    as ∞ or –.
    """
    with style():
        height = 0.8 / max(len(groups), 1)
        figure = new_figure(1.0 + 0.26 * len(labels) * max(len(groups), 1.4) + 0.1 * len(labels))
        axes = figure.subplots()
        for index, (name, given) in enumerate(groups.items()):
            values = np.asarray(given, float)
            if len(values) != len(labels):
                raise ValueError(f"group {name!r} must have {len(labels)} values, one per label, got {len(values)}")
            places = np.arange(len(labels)) + (index - (len(groups) - 1) / 2) * height
            shown = np.where(np.isfinite(values), values, np.nan)
            axes.barh(places, shown, height * 0.86, color=PALETTE[index % len(PALETTE)], label=name)
            ends = shown.copy()
            if intervals is not None and name in intervals:
                low, high = np.asarray(intervals[name], float).T
                for y, start, end in zip(places, low, high, strict=True):
                    axes.plot([start, end], [y, y], color=INK, linewidth=1.2, marker="|", markersize=4)
                ends = np.fmax(shown, np.where(np.isfinite(high), high, shown))
            for y, end, value in zip(places, ends, values, strict=True):
                text = _short(value) if np.isfinite(value) else "∞" if value > 0 else "–"
                at = (end, y) if np.isfinite(end) else (0, y)
                coordinates = "data" if np.isfinite(end) else ("axes fraction", "data")
                axes.annotate(
                    text, at, xycoords=coordinates, xytext=(4, 0), textcoords="offset points", va="center", fontsize=8
                )
        axes.set_yticks(range(len(labels)), labels)
        axes.invert_yaxis()
        axes.set(xlabel=ylabel, title=title)
        if log:
            axes.set_xscale("log")
            _plain_log_ticks(axes.xaxis)
        axes.margins(x=0.12)
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        _legend_below(figure, axes)
        return finish(figure, f"Bars of {ylabel} for {', '.join(labels)}.")


def histogram(
    samples: Mapping[str, Sequence[float]],
    *,
    xlabel: str,
    title: str = "",
    bins: int = 40,
    log: bool = False,
    marks: Mapping[str, float] | None = None,
) -> Drawing:
    """Densities of one or several samples on common bins; ``marks`` are labelled vertical lines.

    ``log`` makes the horizontal axis logarithmic, with bins of equal width there. What is not finite is left out and
    counted in the legend.
    """
    cleaned = {name: np.asarray(values, float) for name, values in samples.items()}
    finite = {name: values[np.isfinite(values)] for name, values in cleaned.items()}
    together = np.concatenate(list(finite.values()))
    if not together.size or (log and together.min() <= 0):
        raise ValueError("samples must hold finite numbers, positive ones on a logarithmic axis")
    low, high = together.min(), together.max()
    high = high if high > low else low + 1.0
    edges = np.geomspace(low, high, bins + 1) if log else np.linspace(low, high, bins + 1)
    with style():
        figure = new_figure(3.4)
        axes = figure.subplots()
        for index, (name, values) in enumerate(finite.items()):
            colour = PALETTE[index % len(PALETTE)]
            left_out = len(cleaned[name]) - len(values)
            label = name + (f" ({left_out} not finite)" if left_out else "")
            heights, _ = np.histogram(values, edges)
            widths = np.diff(np.log(edges)) if log else np.diff(edges)
            density = heights / max(len(values), 1) / widths
            axes.stairs(density, edges, fill=True, color=colour, alpha=0.22)
            axes.stairs(density, edges, color=colour, linewidth=1.4, label=label)
        if log:
            axes.set_xscale("log")
            _plain_log_ticks(axes.xaxis)
        for label, place in (marks or {}).items():
            axes.axvline(place, linestyle=_PREDICTED, color=INK, alpha=0.75, linewidth=1.1)
            axes.annotate(
                label,
                (place, 1),
                xycoords=("data", "axes fraction"),
                xytext=(3, -2),
                textcoords="offset points",
                va="top",
                fontsize=7.5,
            )
        axes.set(xlabel=xlabel, ylabel="density", title=title)
        _legend_below(figure, axes)
        return finish(figure, f"Histogram of {xlabel} for {', '.join(samples)}.")
