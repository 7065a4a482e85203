"""What was run, method by method and cell by cell. Never imports torch."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from helene.lab.report.pages import Section, details, number, paragraph, subtitle, table
from synthetic.analysis.results import FAMILIES, MeasuredCell
from synthetic.analysis.verdicts import Analysed
from synthetic.design import CAP, RACE, Design
from synthetic.report.words import by_family, unbroken

_SHOWN = ("q", "floor_ratio", "lr", "radius")


def run_sections(design: Design, analysed: Sequence[Analysed]) -> list[Section]:
    """What is run and how, then every cell."""
    return [_design(design, analysed), _cells(analysed)]


def _design(design: Design, analysed: Sequence[Analysed]) -> Section:
    """What is run, and how."""
    goals = " or ".join(f"{t:g}" for t in sorted({cell.config["target"] for cell in design.cells}))
    body: list[Markup | str] = [
        paragraph(
            "n layers of width w, d = n w. A run ends when the loss, above its minimum, first falls to the target: "
            f"{goals} of its value at the start (the larger for zeroth-order methods). Test seeds: 10 from d = 64 "
            f"on, 16 below; tuning seeds: 5 and 9, others. A run that misses within {CAP:g} times the predicted "
            f"count enters its median as infinity. While tuning, runs stop at {RACE:g} times the best median, which "
            "cannot change the choice. Directions are those of the optimizers, bit for bit, and common to all step "
            "sizes and methods; slopes along them are exact derivatives, which equal two-point ones to rounding."
        )
    ]
    if design.not_crossed:
        body.append(paragraph("Not every method meets every family from every start, and need not:"))
        items = Markup("").join(Markup("<li>{}</li>").format(reason) for reason in design.not_crossed)
        body.append(Markup("<ul>{}</ul>").format(items))
    for family, members in by_family(analysed):
        rows = []
        for a in members:
            s = a.series
            axes = zip(*[(c.n, c.max_d, c.d) for c in s.cells], strict=True)
            spans = [f"{min(v)} to {max(v)}".replace(" ", "\N{NO-BREAK SPACE}") for v in axes] or ["", "", ""]
            cells = f"{len(s.cells)}, those per {s.ran_from}" if s.borrowed else f"{len(s.cells)}"
            rows.append([s.start, unbroken(s.label), cells, *spans, "; ".join(s.unsupported) or None])
        body.append(subtitle(FAMILIES.get(family, family), f"design-{family}"))
        body += [paragraph(design.why[family])] if family in design.why else []
        body.append(table(["start", "method", "cells", "n", "max d_i", "d", "left out because"], rows))
    return Section("Methods and design", body, anchor="design")


def _cells(analysed: Sequence[Analysed]) -> Section:
    """Every cell, folded away."""
    body: list[Markup | str] = []
    for a in analysed:
        if a.series.borrowed:
            continue
        rows, anchors = [], []
        for c in a.series.cells:
            seeds = ", ".join(number(s) if s != float("inf") else "missed" for s in sorted(c.steps))
            chosen = ", ".join(f"{name} {number(c.best[name])}" for name in _SHOWN if name in c.best)
            key = Markup('<code class="id">{}</code>').format(c.key[:12])
            rows.append([c.n, c.max_d, c.d, seeds, c.status, chosen, _predicted(c), c.forwards_per_step, key])
            anchors.append(f"cell-{c.key[:12]}")
        headers = [
            "n",
            "max d_i",
            "d",
            "steps of each seed",
            "status",
            "chosen",
            "predicted",
            "forwards a step",
            "record",
        ]
        fold = details(f"{_home(a)}: {a.series.label} ({len(rows)} cells)", [table(headers, rows, anchors=anchors)])
        body.append(Markup('<div id="cells-{}">{}</div>').format(a.series.name, fold))
    return Section("All cells", body)


def _predicted(c: MeasuredCell) -> str | float | None:
    """The predicted count, with the range of 95 % of the medians where it is known."""
    if c.predicted is None or c.scatter is None:
        return c.predicted
    return f"{number(c.predicted)} [{number(c.scatter[0])}, {number(c.scatter[1])}]"


def _home(a: Analysed) -> str:
    return f"{FAMILIES.get(a.series.family, a.series.family)}, per {a.series.start}"
