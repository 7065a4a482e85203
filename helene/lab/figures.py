"""Figures: plain data in, SVG and PNG out, the same bytes every time. Never imports torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Drawing:
    """A finished figure.

    Attributes:
        svg: An ``<svg>`` element without XML header, ready to stand in a page; its text follows the page's colour.
        png: The same as PNG on white.
        alt: One sentence for those who cannot see it.
    """

    svg: str
    png: bytes
    alt: str

    def save(self, folder: Path, name: str) -> None:
        """Write ``name.svg`` and ``name.png`` into the folder."""
        raise NotImplementedError


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
        band: (low, high) of the fit at each x, or empty.
        slope: Fitted slope with its interval (slope, low, high), for the legend.
        predicted_slope: Drawn dashed through the series' geometric middle.
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
    ylabel: str = "steps to target (median)",
    title: str = "",
    local_slopes: bool = True,
) -> Drawing:
    """Log-log figure: seeds, medians, fit with band, predicted slope dashed; local slopes in a panel below."""
    raise NotImplementedError


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
    """Grid of numbers (n x w), coloured and written; nan is an empty cell, ``at_least`` marks censored ones."""
    raise NotImplementedError


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
    marks: Mapping[str, float] = field(default_factory=dict),  # type: ignore[assignment]
) -> Drawing:
    """Curves with a legend; ``marks`` are labelled horizontal lines."""
    raise NotImplementedError


def bar_figure(
    labels: Sequence[str],
    groups: Mapping[str, Sequence[float]],
    *,
    ylabel: str,
    title: str = "",
    intervals: Mapping[str, Sequence[tuple[float, float]]] | None = None,
    log: bool = False,
) -> Drawing:
    """Grouped horizontal bars with values written, and optional intervals (low, high) per bar."""
    raise NotImplementedError


def histogram(
    samples: Mapping[str, Sequence[float]],
    *,
    xlabel: str,
    title: str = "",
    bins: int = 40,
    log: bool = False,
    marks: Mapping[str, float] | None = None,
) -> Drawing:
    """Densities of one or several samples; ``marks`` are labelled vertical lines."""
    raise NotImplementedError
