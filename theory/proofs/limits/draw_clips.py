"""Draws steps against the dimension for three clips: ``python -m theory.proofs.limits.draw_clips``."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import numpy as np

from helene.lab.report.figures import Drawing, Line, line_figure
from theory.losses.piecewise import halving
from theory.proofs import bounds
from theory.proofs.problems import Diagonal
from theory.updates.clipped_by_length import ball_step, scaled_newton
from theory.updates.clipped_newton import Direction, clipped_newton, count_steps, theorem_clip

FIGURE = Path(__file__).parent / "clips.svg"
ROOTS = tuple(2**k for k in range(6))
DEPTH, TARGET = 30, 1e-2


def counted(direction: Direction, size: float) -> int:
    """Steps of a layer of radius 1 with one coordinate, of the slowest growth, 30 radii away; size: clip or radius."""
    problem = Diagonal([halving(DEPTH, Fraction(1, 64)).in_floats])
    return count_steps(problem, np.array([float(DEPTH)]), TARGET, 10**5, [1], [size], direction=direction).steps


def counts() -> dict[str, list[int]]:
    """Steps for each dimension in ``ROOTS`` squared."""
    return {
        "box": [counted(clipped_newton, theorem_clip(1.0, root**2)) for root in ROOTS],
        "ball": [counted(ball_step, 1.0)] * len(ROOTS),
        "scaled": [counted(scaled_newton, 1.0)] * len(ROOTS),
    }


def draw(found: dict[str, list[int]]) -> Drawing:
    """Counts and bounds against the dimension."""
    dimensions = [root**2 for root in ROOTS]
    gap = Diagonal([halving(DEPTH, Fraction(1, 64)).in_floats])(np.array([float(DEPTH)])).gap
    proved = bounds.trust_region_bound(1.0, 1.0, [1.0], [1.0], gap, TARGET)
    least = [4 * root * (DEPTH - 2 * math.sqrt(TARGET)) for root in ROOTS]
    return line_figure(
        [
            Line("box (the theorem's clip), counted", dimensions, found["box"]),
            Line("box: least possible, 4√d (D/R − 2√ε)", dimensions, least, style="dashed"),
            Line("ball, and scaled Newton step: counted", dimensions, found["ball"]),
            Line("ball, and scaled Newton step: proved bound", dimensions, [proved] * len(ROOTS), style="dashed"),
        ],
        xlabel="dimension d of the layer",
        ylabel="steps",
        title="One coordinate 30 radii away: who pays √d",
        xlog=True,
        ylog=True,
    )


if __name__ == "__main__":
    FIGURE.write_text(draw(counts()).svg, encoding="utf-8")
