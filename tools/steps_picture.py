"""The picture of README.md, from committed records: ``python -m tools.steps_picture`` writes it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from helene.inputs.files import write_text
from helene.lab.report import drawing
from helene.lab.report.method_colours import PLACES

ROOT = Path(__file__).parents[1]
COMMAND = "python -m tools.steps_picture"
RECORDS, PICTURE = ROOT / "synthetic" / "records" / "full.jsonl", ROOT / "docs" / "_static" / "steps.svg"
WIDTH = 16  # of every layer
NAMES = {"helene": "HELENE", "mezo": "MeZO", "per_layer": "one direction\nper layer"}
_LIGHT, _DARK = "#ffffff", "#1f2328"  # a viewer of images gives a picture no text colour


def series() -> dict[str, dict[str, Any]]:
    """Of each method on quadratics: steps (the median over seeds) by number of layers, and the exponent of d."""
    lines = [json.loads(line) for line in RECORDS.read_text(encoding="utf-8").splitlines()]
    found = {
        line["series"].rpartition("-")[2]: line
        for line in lines
        if line.get("subset") == "d >= 64" and line["series"] in {f"quadratic-coordinate-{name}" for name in NAMES}
    }
    return {
        name: {
            "steps": {n: steps for _, n, width, _, steps, _ in found[name]["cells"] if width == WIDTH},
            "exponent": found[name]["beta"][0],
        }
        for name in NAMES
    }


def told(measured: Mapping[str, Mapping[str, Any]]) -> str:
    """The picture in a sentence."""
    parts = []
    for name, one in measured.items():
        first, *_, last = one["steps"].values()
        parts.append(f"{' '.join(NAMES[name].split())} {first:g} to {last:g}, d^{one['exponent']:.2f}")
    return f"Steps to target on quadratics of 1 to 32 layers: {'; '.join(parts)}."


def picture(measured: Mapping[str, Mapping[str, Any]]) -> str:
    """Steps against layers, each line named at its end; by the paper's claim they are the same for any number."""
    with drawing.style():
        figure = drawing.new_figure(3.4)
        axes = figure.subplots()
        for name, one in measured.items():
            layers, steps = list(one["steps"]), list(one["steps"].values())
            colour = drawing.PALETTE[PLACES[name]]
            axes.plot(layers, steps, marker=drawing.MARKERS[PLACES[name]], color=colour)
            exponent = f"$d^{{{abs(one['exponent']):.2f}}}$"
            place = {"mezo": (8, -9), "helene": (8, 5)}.get(name, (8, -20))
            axes.annotate(
                f"{NAMES[name]}, {exponent}",
                (layers[-1], steps[-1]),
                place,
                textcoords="offset points",
                color=colour,
                weight="bold",
            )
        layers = list(measured["helene"]["steps"])
        first = measured["helene"]["steps"][layers[0]]
        axes.plot(layers, [first] * len(layers), color=drawing.INK, linestyle=drawing.REFERENCE)
        axes.annotate(
            "the paper's claim for\nHELENE, max $d_i$",
            (layers[-1], first),
            (8, 2),
            textcoords="offset points",
            weight="bold",
        )
        axes.set(
            xscale="log",
            yscale="log",
            xlim=(0.9, 130),
            ylim=(60, 6000),
            xlabel="number of layers, 16 parameters each",
            ylabel="steps to target",
            title="Steps grow with all parameters, not with the largest layer",
        )
        drawing.plain_log_ticks(axes.xaxis, layers)
        drawing.plain_log_ticks(axes.yaxis)
        svg = drawing.finish(figure, told(measured)).svg
    head, _, body = svg.partition(">")
    return f'{head}>\n<rect width="100%" height="100%" fill="{_LIGHT}"/>{body.replace("currentColor", _DARK)}\n'


if __name__ == "__main__":
    write_text(PICTURE, picture(series()))
    print(f"written: {PICTURE.relative_to(ROOT)}")
