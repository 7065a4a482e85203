"""Figures: plain data in, SVG and PNG out, the same bytes every time. Never imports torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import matplotlib
import numpy as np
from matplotlib.colors import LogNorm, Normalize

from helene.lab.drawing import (
    DASHES,
    INK,
    MARKERS,
    PALETTE,
    REFERENCE,
    WIDTH,
    Drawing,
    finish,
    legend_below,
    new_figure,
    plain_log_ticks,
    short,
    style,
)
from helene.lab.scaling_figure import ScalingSeries, scaling_figure

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
            text = ("≥" if censored[i, j] else "") + short(float(grid[i, j]))
            ink = "black" if luminance > 0.45 else "white"
            box_of_text = {"facecolor": face, "edgecolor": "none", "pad": 1.2}
            axes.text(j, i, text, ha="center", va="center", color=ink, fontsize=8.5, bbox=box_of_text)
        axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(-0.5, len(rows) - 0.5), xlabel=column_label, ylabel=row_label)
        axes.set_xticks(range(len(columns)), [short(c) for c in columns])
        axes.set_yticks(range(len(rows)), [short(r) for r in rows])
        axes.grid(visible=False)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_title(title or value_label)
        span = f"from {short(low)} to {short(high)}" if finite.size else "empty"
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
            plain_log_ticks(axes.xaxis)
        if ylog:
            axes.set_yscale("log")
            plain_log_ticks(axes.yaxis)
        for label, level in (marks or {}).items():
            axes.axhline(level, linestyle=REFERENCE, color=INK, alpha=0.65, linewidth=1.1)
            axes.annotate(
                label,
                (1, level),
                xycoords=("axes fraction", "data"),
                xytext=(-3, 3),
                textcoords="offset points",
                ha="right",
                fontsize=7.5,
            )
        legend_below(figure, axes, always=True)
        return finish(figure, f"{ylabel} against {xlabel} for {', '.join(line.label for line in lines)}.")


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
                text = short(value) if np.isfinite(value) else "∞" if value > 0 else "–"
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
            plain_log_ticks(axes.xaxis)
        axes.margins(x=0.12)
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        legend_below(figure, axes)
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
            plain_log_ticks(axes.xaxis)
        for label, place in (marks or {}).items():
            axes.axvline(place, linestyle=REFERENCE, color=INK, alpha=0.75, linewidth=1.1)
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
        legend_below(figure, axes)
        return finish(figure, f"Histogram of {xlabel} for {', '.join(samples)}.")
