"""Figures: plain data in, SVG and PNG out, the same bytes every time. Never imports torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from matplotlib.axes import Axes

from helene.lab.report.drawing import (
    DASHES,
    INK,
    MARKERS,
    PALETTE,
    REFERENCE,
    SMALL,
    Drawing,
    finish,
    legend_below,
    new_figure,
    plain_log_ticks,
    short,
    style,
)

__all__ = ["Drawing", "Line", "bar_figure", "line_figure"]


@dataclass(frozen=True)
class Line:
    """One curve of :func:`line_figure`.

    Attributes:
        label: In the legend.
        x: Shape (points,).
        y: Shape (points,); of "steps" y[i] holds from x[i] up to x[i + 1].
        band: (low, high) at each x.
        style: How it is drawn.
        colour: Its place in the palette, by which one thing has one colour in several figures; None is its place among
            the lines.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    band: tuple[Sequence[float], Sequence[float]] | None = None
    style: Literal["solid", "dashed", "points", "steps"] = "solid"
    colour: int | None = None


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
        for place, line in enumerate(lines):
            index = place if line.colour is None else line.colour
            colour = PALETTE[index % len(PALETTE)]
            dash = {"dashed": DASHES[1], "points": "none"}.get(line.style, "-")
            few = len(line.x) <= 30
            marker = MARKERS[index % len(MARKERS)] if line.style == "points" or few else ""
            y = np.where(np.isfinite(np.asarray(line.y, float)), line.y, np.nan)
            (curve,) = axes.plot(line.x, y, linestyle=dash, marker=marker, color=colour, label=line.label, markersize=4)
            curve.set_drawstyle("steps-post" if line.style == "steps" else "default")
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
            side = _freer_side(axes, lines, label, level)
            axes.annotate(
                label,
                (side == "right", level),
                xycoords=("axes fraction", "data"),
                xytext=(-3 if side == "right" else 3, 3),
                textcoords="offset points",
                ha=side,
                fontsize=SMALL,
            )
        legend_below(figure, axes, always=True)
        return finish(figure, f"{ylabel} against {xlabel} for {', '.join(line.label for line in lines)}.")


def _freer_side(axes: Axes, lines: Sequence[Line], label: str, level: float) -> Literal["left", "right"]:
    """The side where fewer points of the lines lie under the label of a mark; the right where both have as many."""
    points = [point for line in lines for point in zip(line.x, line.y, strict=True)]
    places = axes.transData.transform([*points, (axes.get_xlim()[1], level)]) * 72 / axes.figure.dpi
    (left, _), (right, _) = axes.bbox.get_points() * 72 / axes.figure.dpi
    x, above = places[:-1, 0], places[:-1, 1] - places[-1, 1]
    under = (above > -SMALL / 2) & (above < 2 * SMALL)
    width = 0.7 * SMALL * len(label)
    return "left" if np.sum(under & (x < left + width)) < np.sum(under & (x > right - width)) else "right"


def bar_figure(
    labels: Sequence[str],
    groups: Mapping[str, Sequence[float]],
    *,
    xlabel: str,
    title: str = "",
    intervals: Mapping[str, Sequence[tuple[float, float]]] | None = None,
) -> Drawing:
    """Horizontal bars, one set per label and one bar of it per group, values written, with optional intervals.

    A value that is not finite has no bar and reads as ∞ or –.

    Raises:
        ValueError: If a group has another number of values than there are labels.
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
                    text,
                    at,
                    xycoords=coordinates,
                    xytext=(4, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=SMALL,
                )
        axes.set_yticks(range(len(labels)), labels)
        axes.invert_yaxis()
        axes.set(xlabel=xlabel, title=title)
        axes.margins(x=0.12)
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        legend_below(figure, axes)
        return finish(figure, f"Bars of {xlabel} for {', '.join(labels)}.")
