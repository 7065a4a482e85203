"""Figures: stable bytes, valid and self-contained SVG, and what the data says is drawn."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from matplotlib.axes import Axes

from helene.lab.report.drawing import INK, PALETTE, _lines_of, short
from helene.lab.report.figures import Line, bar_figure, line_figure
from helene.lab.scaling.scaling_figure import ScalingSeries, legend_label, neighbour_slopes, scaling_figure

HERE = Path(__file__).parent
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def lab_figures():
    sys.path.insert(0, str(HERE))
    import lab_figures

    yield lab_figures
    sys.path.remove(str(HERE))


@pytest.fixture(scope="module")
def figures(lab_figures):
    return lab_figures.all_figures()


def test_same_bytes_twice_and_in_a_fresh_process_under_other_settings(lab_figures, tmp_path):
    """The other process has a matplotlibrc of its own, another locale and hash seed, and must load no torch."""
    (tmp_path / "matplotlibrc").write_text(
        "lines.linewidth: 9\nfont.size: 20\nsvg.fonttype: none\naxes.facecolor: red\n"
    )
    environment = {"PYTHONHASHSEED": "7", "MPLBACKEND": "svg", "PATH": "", "LC_ALL": "C"}
    environment["MPLCONFIGDIR"] = matplotlib.get_cachedir()  # the list of fonts takes long to make
    done = subprocess.run(
        [sys.executable, HERE / "lab_figures.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    fresh = json.loads(done.stdout)
    assert fresh["digests"] == lab_figures.digests()
    assert fresh["torch"] is False


@pytest.mark.parametrize("name", ["scaling", "lines", "bars"])
def test_svg_is_valid_self_contained_and_themed(figures, name):
    drawing = figures[name]
    root = ElementTree.fromstring(drawing.svg)
    assert root.tag == f"{SVG}svg"
    assert root.get("role") == "img"
    assert root.get("aria-label") == drawing.alt
    assert not list(root.iter(f"{SVG}text")), "text must be outlines: fonts differ between machines"
    assert not list(root.iter(f"{SVG}image"))
    assert re.findall(r"https?:[^\"' ]*", drawing.svg) == ["http://www.w3.org/2000/svg"]
    assert "currentColor" in drawing.svg
    assert INK not in drawing.svg
    assert drawing.png.startswith(b"\x89PNG")
    assert b"Software" not in drawing.png[:2000]
    ids = [node.get("id") for node in root.iter() if node.get("id")]
    assert len(ids) == len(set(ids))
    used = re.findall(r'href="#([^"]+)"', drawing.svg) + re.findall(r"url\(#([^)]+)\)", drawing.svg)
    assert used
    assert set(used) <= set(ids)


def test_ids_of_two_figures_never_clash(figures):
    ids = [set(re.findall(r'\bid="([^"]+)"', drawing.svg)) for drawing in figures.values()]
    assert len(set.union(*ids)) == sum(map(len, ids))


def test_tidying_changes_no_picture(lab_figures, monkeypatch):
    """Metamorphic: the tidy SVG has as many drawn things as matplotlib's own."""
    raw = []
    tidy = lab_figures.scaling.__globals__["scaling_figure"].__globals__["finish"].__globals__["_tidy"]
    monkeypatch.setattr("helene.lab.report.drawing._tidy", lambda svg, alt: raw.append(svg) or tidy(svg, alt))
    drawing = lab_figures.scaling()
    for tag in ("<use", "<path", "<clipPath"):
        assert drawing.svg.count(tag) == raw[0].count(tag) > 0
    assert len(drawing.svg) < len(raw[0])


def markers(drawing):
    """How many markers of each look: seeds are half transparent, hollow ones wholly."""
    root = ElementTree.fromstring(drawing.svg)
    parents = {child: parent for parent in root.iter() for child in parent}
    styles = [use.get("style") or parents[use].get("style") for use in root.iter(f"{SVG}use")]
    looks = {
        "seed": "fill-opacity: 0.5",
        "hollow": "fill-opacity: 0; stroke",
        "solid": f"fill: {PALETTE[0]}; stroke: {PALETTE[0]}",
    }
    return {look: sum(style == sign or sign in style for style in styles if style) for look, sign in looks.items()}


def test_every_seed_median_and_hollow_cell_is_there(lab_figures):
    """Four cells of six seeds: one excluded, one with two finite seeds that missed in the median."""
    full = lab_figures.scaling()
    # Solid: two fitted medians, two local slopes, the legend's.
    assert markers(full) == {"seed": 20, "hollow": 2, "solid": 5}
    assert markers(lab_figures.scaling(excluded=[False] * 4)) == {"seed": 20, "hollow": 1, "solid": 6}
    without_line = lab_figures.scaling(predicted_slope=None)
    assert full.svg.count("stroke-dasharray") == without_line.svg.count("stroke-dasharray") + 2  # line and local slopes


def test_a_legend_keeps_an_interval_on_one_line_with_a_true_minus():
    one = ScalingSeries("theorem's update, one clip (R = distance)", [], [], slope=(-0.001, -0.012, 0.02))
    lines = _lines_of(legend_label(one), 50).split("\n")
    assert lines == [
        "theorem's update, one clip (R = distance)",
        "0.00\N{NO-BREAK SPACE}[−0.01,\N{NO-BREAK SPACE}0.02]",
    ]
    assert legend_label(replace(one, label="MeZO", predicted_slope=-0.5)).endswith("0.02], predicted −0.50 (dashed)")
    drawn = scaling_figure([ScalingSeries("a", [1.0, 2.0], [[3.0], [2.0]], slope=(-0.58, -0.6, -0.5))], xlabel="x")
    assert drawn.alt.endswith("a −0.58.")


def test_series_of_one_colour_differ_in_marker_and_dashes():
    one = ScalingSeries("a", [1.0, 2.0, 4.0], [[3.0], [4.0], [5.0]], fitted=[3.0, 4.0, 5.0], colour=6)
    alone = scaling_figure([one, replace(one, colour=5)], xlabel="x").svg
    both = scaling_figure([one, replace(one, label="b")], xlabel="x").svg
    assert {colour for colour in PALETTE if colour in both} == {PALETTE[6]}
    assert both.count("stroke-dasharray") > alone.count("stroke-dasharray")


def test_alt_names_methods_and_slopes(figures):
    assert figures["scaling"].alt == "Log-log plot of steps to target against d for MeZO; fitted slopes: MeZO 1.01."


def test_alt_is_escaped():
    drawing = line_figure([Line('a<b & "c" \\1', [1.0, 2.0], [1.0, 2.0])], xlabel="x", ylabel="y")
    assert ElementTree.fromstring(drawing.svg).get("aria-label") == drawing.alt


def test_steps_hold_until_the_next_point():
    """Of three points: up at the second and the third, along in between, where a straight line has three points."""
    both = [line_figure([Line("a", [1, 2, 3], [0, 1, 2], style=s)], xlabel="x", ylabel="y") for s in ("solid", "steps")]
    paths = [re.findall(r'<path d="(M [^"]*)"[^>]*stroke: ' + PALETTE[0], d.svg) for d in both]
    assert [max(path.count("L") for path in found) for found in paths] == [2, 4]


def test_local_slopes_of_cells_that_share_an_x():
    """By hand: the mean of log 1 and log 4 is log 2, so that the slope from 4 to 16 is log(8 / 2) / log 4 = 1."""
    middles, slopes = neighbour_slopes(np.array([4.0, 4.0, 16.0, 16.0]), np.log([1.0, 4.0, 8.0, 8.0]))
    assert middles == pytest.approx([8.0])
    assert slopes == pytest.approx([1.0])


def test_everything_missed_still_draws():
    one = ScalingSeries("m", [4, 16], [[float("inf")] * 3] * 2, caps=[100.0, 200.0])
    assert scaling_figure([one], xlabel="d").svg
    assert line_figure([Line("a", [1, 2], [float("inf"), float("nan")])], xlabel="x", ylabel="y").svg


@pytest.mark.parametrize(
    ("draw", "said"),
    [
        (lambda: scaling_figure([], xlabel="d"), "at least one ScalingSeries"),
        (lambda: scaling_figure([ScalingSeries("m", [1, 2], [[1.0]])], xlabel="d"), "series 'm' must give"),
        (lambda: bar_figure(["a"], {"g": [1.0, 2.0]}, xlabel="x"), "group 'g' must have 1 values"),
    ],
)
def test_bad_input(draw, said):
    with pytest.raises(ValueError, match=said):
        draw()


@pytest.mark.parametrize(
    ("value", "said"),
    [(0, "0"), (0.02, "0.02"), (1e-5, "10⁻⁵"), (2.5e-6, "2.5·10⁻⁶"), (250, "250"), (9999, "9999"), (16300, "16.3k")],
)
def test_short_numbers(value, said):
    assert short(value) == said


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("paper", ["#ffffff", "#131519"])
def test_palette_stands_out_on_light_and_dark(paper):
    """Contrast of at least 2.4 for lines and markers (WCAG asks 3 of them where colour alone tells; shapes differ)."""
    for colour in PALETTE:
        bright, dark = sorted((luminance(colour), luminance(paper)), reverse=True)
        assert (bright + 0.05) / (dark + 0.05) >= 2.4, colour


def test_save(tmp_path, figures):
    figures["bars"].save(tmp_path / "new", "bars")
    assert (tmp_path / "new" / "bars.svg").read_text().startswith("<svg")
    assert (tmp_path / "new" / "bars.png").read_bytes() == figures["bars"].png


@pytest.mark.parametrize(("points", "side"), [("left", "right"), ("right", "left"), ("nowhere", "right")])
def test_the_label_of_a_mark_stands_where_no_points_are(monkeypatch, points, side):
    told = []
    monkeypatch.setattr(Axes, "annotate", lambda self, *args, **options: told.append(options["ha"]))
    levels = {"left": [1.05, 1.05, 500, 500], "right": [500, 500, 1.05, 1.05], "nowhere": [500, 20, 20, 500]}
    line = Line("a", [1, 2, 900, 1000], levels[points], style="points")
    line_figure([line], xlabel="x", ylabel="y", xlog=True, ylog=True, marks={"count": 1.0})
    assert told == [side]
