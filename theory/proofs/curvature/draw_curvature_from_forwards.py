"""Draws squared correlations against losses: ``python -m theory.proofs.curvature.draw_curvature_from_forwards``."""

from __future__ import annotations

import numpy as np

from helene.lab.report.figures import Drawing, Line, line_figure
from theory.proofs.curvature import curvature_from_forwards as page


def draw() -> Drawing:
    """Predicted lines, measured points, and the bound for every method."""
    rows = page.read()
    d, counts = page.DIMENSION, [int(row["estimates"]) for row in rows]
    spread = float(page.truth(d).std())
    dense = np.geomspace(counts[0], counts[-1], 100)
    lines = [
        Line(name, [losses * count for count in counts], [float(row[name]) for row in rows], style="points")
        for name, losses in page.LOSSES.items()
    ]
    lines += [
        Line(f"{name}, limit", (losses * dense).tolist(), [page.predicted(name, d, spread, count) for count in dense])
        for name, losses in page.LOSSES.items()
    ]
    reach = range(2, d - 1)
    lines.append(Line("no method above", reach, [page.most(d, losses) for losses in reach], style="dashed"))
    return line_figure(
        lines,
        xlabel="exact losses",
        ylabel="squared correlation with the truth",
        title=f"Curvature from forwards, d = {d}",
        xlog=True,
    )


if __name__ == "__main__":
    page.RECORD.with_suffix(".svg").write_text(draw().svg, encoding="utf-8")
