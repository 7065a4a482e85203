"""Draws bound over count from the committed record: ``python -m theory.proofs.separable.draw_step_counts``."""

from __future__ import annotations

from helene.lab.report.figures import Drawing, Line, line_figure
from theory.proofs.separable import step_counts


def draw(bound: str) -> Drawing:
    """One point a problem; ``bound`` is ``stated`` or ``sharper``."""
    rows = step_counts.read()
    lines = [
        Line(
            label=family,
            x=[int(row["steps"]) for row in rows if row["family"] == family],
            y=step_counts.ratios(rows, family, bound),
            style="points",
        )
        for family in step_counts.families(rows)
    ]
    return line_figure(
        lines,
        xlabel="steps counted",
        ylabel="bound / steps",
        title=f"The {bound} bound over the count",
        xlog=True,
        ylog=True,
        marks={"count": 1.0},
    )


if __name__ == "__main__":
    for name in ("stated", "sharper"):
        (step_counts.RECORD.parent / f"step_counts_{name}.svg").write_text(draw(name).svg, encoding="utf-8")
