"""Bounds over exact rates, exact averages over bounds: ``python -m theory.proofs.algorithm.draw_algorithm_1``."""

from __future__ import annotations

from helene.lab.report.figures import Drawing, Line, line_figure
from theory.proofs.algorithm import algorithm_1 as page

RATIOS = {
    "upper bound (j) / exact steps": ("upper", "efold"),
    "lower bound (j) / exact steps": ("lower", "efold"),
    "simulated median / exact steps": ("simulated", "efold"),
    "average of Φ / bound of the descent": ("descent", None),
}


def draw() -> Drawing:
    """One point a problem and ratio, against tr ℓ/ℓ_min."""
    rows = page.read()
    x = [4.0 * float(row["lower"]) for row in rows]
    lines = [
        Line(label, x, [float(row[over]) / (float(row[under]) if under else 1.0) for row in rows], style="points")
        for label, (over, under) in RATIOS.items()
    ]
    return line_figure(
        lines,
        xlabel="tr(D⁻¹H) / λ_min(D⁻¹H)",
        ylabel="ratio",
        title=f"What Algorithm 1's theory says over what happens, {len(rows)} problems",
        xlog=True,
        ylog=True,
        marks={"exact": 1.0},
    )


if __name__ == "__main__":
    page.RECORD.with_suffix(".svg").write_text(draw().svg, encoding="utf-8")
