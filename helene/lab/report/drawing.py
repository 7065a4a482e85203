"""How every figure looks, and how it becomes bytes: one style, no dates, no fonts to find, no clashing ids."""

from __future__ import annotations

import hashlib
import html
import io
import math
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from helene.lab.report.report_files import write_file, write_report_text

# Okabe and Ito's palette, its blue and green lightened and its yellow left out, so that each stands out on white and
# on near-black. Markers and dashes differ too: nothing is told by colour alone.
PALETTE = ("#1f7fc4", "#d55e00", "#0f9d74", "#c2689a", "#c98a00", "#56a9d6", "#8c6bd1", "#808080")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "h")
DASHES = ("-", (0, (6, 1.5)), (0, (4, 1.2, 1, 1.2)), (0, (2, 1)))
INK = "#0a0b0c"  # drawn in this and turned into the page's own text colour
_LEGEND_LINE, _LEGEND_LETTERS = 0.19, 50  # inches, and how many letters a line has room for
REFERENCE = (0, (4, 3))  # dashes of what is predicted or marked rather than measured
WIDTH = 4.2  # inches, 302 points: a phone shows it a quarter larger, so that 9 points are 11 pixels there
SMALL = 9.0  # points: no text in a figure is smaller

_STYLE: dict[str, Any] = {
    "svg.fonttype": "path",  # text as outlines: the same on every machine, no font needed
    "svg.hashsalt": "helene",
    "path.simplify": False,
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.14,
    "grid.linewidth": 0.7,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "legend.fontsize": SMALL,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "hatch.linewidth": 0.6,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    **dict.fromkeys(
        ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color", "hatch.color"),
        INK,
    ),
}


@dataclass(frozen=True)
class Drawing:
    """A finished figure.

    Attributes:
        svg: An ``<svg>`` element without XML header, ready to stand in a page; its text takes the page's colour, and
            its ids are its own, so that several stand in one page.
        raster: Draws the same as PNG, 200 dots per inch on white; takes as long as the rest.
        alt: One sentence for those who cannot see it.
    """

    svg: str
    raster: Callable[[], bytes]
    alt: str

    @cached_property
    def png(self) -> bytes:
        """What ``raster`` draws, once."""
        return self.raster()

    def save(self, folder: Path, name: str) -> None:
        """Write ``name.svg`` and ``name.png`` into the folder, which is made when missing.

        Raises:
            ValueError: If one cannot be written.
        """
        write_report_text(folder / f"{name}.svg", self.svg + "\n")
        write_file(folder / f"{name}.png", lambda partial: partial.write_bytes(self.png))


@contextmanager
def style() -> Iterator[None]:
    """The house style and nothing of the user's own settings: they would change the bytes."""
    defaults = {name: value for name, value in matplotlib.rcParamsDefault.items() if not name.startswith("backend")}
    with matplotlib.rc_context({**defaults, **_STYLE}):
        yield


def new_figure(height: float) -> Figure:
    """An empty figure of width `WIDTH` with room found for its labels; the height in inches."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def finish(figure: Figure, alt: str) -> Drawing:
    """Turn a figure into a :class:`Drawing`, within :func:`style`."""
    _break_lines(figure)
    vector = io.StringIO()
    figure.savefig(vector, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    figure.set_layout_engine("none")  # keeps the places found; finding them is half of the drawing
    return Drawing(_tidy(vector.getvalue(), alt), lambda: _raster(figure), alt)


def _raster(figure: Figure) -> bytes:
    raster = io.BytesIO()
    with style():
        figure.savefig(raster, format="png", dpi=200, facecolor="white", metadata={"Software": None})
    return raster.getvalue()


def _break_lines(figure: Figure) -> None:
    """Titles and labels over as many lines as the figure has no room for on one; sizes of letters are rounded up."""
    width, height = (72 * size for size in figure.get_size_inches())
    for axes in figure.axes:
        room, share = width - 50, axes.get_position().height
        size = float(_STYLE["axes.labelsize"])
        axes.set_title(_lines_of(axes.get_title(loc="left"), int(room / (0.66 * _STYLE["axes.titlesize"]))))
        axes.set_xlabel(_lines_of(axes.get_xlabel(), int(room / (0.6 * size))))
        axes.set_ylabel(_lines_of(axes.get_ylabel(), int(0.8 * height * share / (0.6 * size))))


def _lines_of(text: str, letters: int) -> str:
    """Text broken between words, so that no line has more letters; mathematics stays whole."""
    return text if "$" in text else "\n".join(textwrap.wrap(text, max(letters, 10), break_long_words=False))


def _tidy(svg: str, alt: str) -> str:
    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = svg.replace("xlink:href", "href").replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "")
    svg = re.sub(r'((?:\s|<use )(?:d|x|y)=")([^"]*)"', lambda m: m[1] + _rounded(m[2]) + '"', svg)
    svg = re.sub(r"(?:\s*<use [^>]*?style=\"([^\"]*)\"/>)(?:\s*<use [^>]*?style=\"\1\"/>)+", _shared_style, svg)
    svg = svg.replace(INK, "currentColor")
    svg = re.sub(r" ?\n\s*(?=[A-Za-z\"])", "", svg)  # within the d of a path
    svg = re.sub(r"\n\s*", "\n", svg)
    svg = _own_ids(svg)
    return re.sub(r"<svg([^>]*)>", rf'<svg role="img" aria-label="{_literal(html.escape(alt))}"\1>', svg, count=1)


def _own_ids(svg: str) -> str:
    """Short ids that no other drawing has; those that nothing refers to are left out."""
    prefix = "f" + hashlib.sha256(svg.encode()).hexdigest()[:8]
    used = dict.fromkeys(re.findall(r'(?:href="|url\()#([^")]+)', svg))
    names = {old: f"{prefix}-{index:x}" for index, old in enumerate(used)}
    svg = re.sub(r' id="([^"]*)"', lambda m: f' id="{names[m[1]]}"' if m[1] in names else "", svg)
    return re.sub(r'(href="|url\()#([^")]+)', lambda m: f"{m[1]}#{names[m[2]]}", svg)


def _rounded(numbers: str) -> str:
    """Coordinates to a hundredth of a point, a third of the bytes saved."""
    return re.sub(r"-?\d+\.\d{3,}", lambda m: f"{float(m[0]):.2f}".rstrip("0").rstrip("."), numbers)


def _shared_style(match: re.Match[str]) -> str:
    return f'<g style="{match[1]}">' + match[0].replace(f' style="{match[1]}"', "") + "</g>"


def _literal(text: str) -> str:
    return text.replace("\\", r"\\")


def short(value: float, _: Any = None) -> str:
    """A number of few characters: 0.02, 1, 250, 4k, 1.5M."""
    size = abs(value)
    for limit, factor, unit in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if size >= limit:
            return f"{value / factor:.3g}{unit}"
    if 0 < size < 1e-3:
        mantissa, exponent = f"{value:.1e}".replace(".0e", "e").split("e")
        power = "10" + str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
        return power if mantissa == "1" else f"{mantissa}·{power}"
    return f"{value:.0f}" if size >= 1000 else f"{value:.3g}"


def plain_log_ticks(axis: Any, places: Sequence[float] = ()) -> None:
    """Ticks at the measured places when they are few, else at 1, 2, 5 times powers of ten; plain numbers."""
    low, high = axis.get_view_interval()
    decades = math.log10(high / low)
    if 0 < len(places) <= 9:
        axis.set_ticks(list(places))
    elif decades < 4:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 2.2 else (1, 3)))
    axis.set_major_formatter(FuncFormatter(short))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def legend_below(figure: Figure, axes: Axes, always: bool = False) -> None:
    """The legend beneath everything, in as many columns as fit; none for a single label unless ``always``."""
    handles, found = axes.get_legend_handles_labels()
    labels = [_lines_of(label, _LEGEND_LETTERS) for label in found]
    if len(labels) > 1 or (labels and always):
        longest = max(len(line) for label in labels for line in label.split("\n"))
        columns = min(len(labels), max(1, int(_LEGEND_LETTERS * 1.1 / (longest + 8))))
        lines = math.ceil(len(labels) / columns) + sum(label.count("\n") for label in labels)
        more = max(0, lines - 2)
        figure.set_figheight(figure.get_figheight() + _LEGEND_LINE * more)  # so that the axes keep their height
        figure.legend(handles, labels, loc="outside lower left", ncols=columns)
