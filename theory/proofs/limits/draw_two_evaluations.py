"""Draws the measured gaps against the bound: ``python -m theory.proofs.limits.draw_two_evaluations``."""

from __future__ import annotations

from helene.lab.report.figures import Drawing, Line, line_figure
from helene.lab.report.method_colours import places_of
from helene.methods import ENTRIES
from synthetic.analysis.least_steps import least_share
from theory.proofs.limits import two_evaluations as page


def draw() -> Drawing:
    """One line a method; the bounds dashed."""
    rows = page.read()
    steps = [int(row["step"]) for row in rows]
    bounds = {"no difference method below": 1, "no two-evaluation method below": 2}
    methods = {entry.cls: entry.name for entry in ENTRIES if entry.cls in rows[0]}
    colours = places_of(methods.values())
    lines = [
        Line(cls, steps, [float(row[cls]) for row in rows], colour=colours[methods[cls]])
        for cls in rows[0]
        if cls != "step"
    ]
    lines += [
        Line(label, steps, [least_share(page.DIMENSION, readings * t) for t in steps], style="dashed")
        for label, readings in bounds.items()
    ]
    return line_figure(
        lines,
        xlabel="steps T",
        ylabel="mean of G / G0",
        title=f"Tuned optimizers and what two losses a step allow, d = {page.DIMENSION}",
    )


if __name__ == "__main__":
    page.RECORD.with_suffix(".svg").write_text(draw().svg, encoding="utf-8")
