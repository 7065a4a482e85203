"""The sections of the report's page. Never imports torch."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from helene.lab.figures import Drawing
from helene.lab.pages import Section, badge, details, figure, number, paragraph, subtitle, table, two_places
from synthetic.analysis.explain import explain
from synthetic.analysis.exponents import Fit
from synthetic.analysis.results import FAMILIES, TITLES, Measured
from synthetic.analysis.verdicts import Analysed
from synthetic.design import CAP, RACE, Design
from synthetic.report.answers import STARTS

Pictures = dict[tuple[str, str], list[tuple[str, Drawing, str]]]
_HOW_TO_READ = (
    "The tables give T ~ (max d_i)^alpha d^beta with 95 % intervals, on the cells with d ≥ 64 where there are eight or "
    "more of them. The verdict is on “the steps follow max d_i and not d”. × MeZO: steps over tuned MeZO's, "
    "geometric mean."
)
_SHOWN = ("q", "floor_ratio", "lr", "radius")


def family_sections(analysed: Sequence[Analysed], pictures: Pictures) -> list[Section]:
    """One section per family: a table of exponents and the figures of each start."""
    out: list[Section] = []
    for family in dict.fromkeys(a.series.family for a in analysed):
        body: list[Markup | str] = [paragraph(_HOW_TO_READ)] if not out else []
        for start in dict.fromkeys(a.series.start for a in analysed if a.series.family == family):
            rows = [a for a in analysed if (a.series.family, a.series.start) == (family, start)]
            body.append(subtitle(f"Start: {STARTS.get(start, start)}", f"{family}-{start}"))
            body += _exponents(rows)
            borrowed = dict.fromkeys(a.series.borrowed for a in rows if a.series.borrowed)
            names = ", ".join(a.series.label for a in rows if a.series.borrowed)
            body += [paragraph(f"Same runs as from the first start for {names}: {reason}.") for reason in borrowed]
            body += [figure(drawing, caption) for _, drawing, caption in pictures.get((family, start), [])]
        out.append(Section(FAMILIES.get(family, family).capitalize(), body, anchor=family))
    return out


def _exponents(rows: Sequence[Analysed]) -> list[Markup]:
    lines = []
    for a in rows:
        link = Markup('<a href="#cells-{}">{}</a>').format(a.series.lender, unbroken(a.series.label))
        ratio = None if a.ratio is None else spread(a.ratio)
        lines.append([link, badge(a.verdict), exponent(a.main, "max_d"), exponent(a.main, "d"), ratio])
    used = {(a.main.subset, a.main.law.num_cells, len(a.series.cells)) for a in rows if a.main.law is not None}
    said = " or ".join(
        f"all {most}" if subset == "all" else f"the {count} of {most} with {subset.replace('>=', '≥')}"
        for subset, count, most in sorted(used)
    )
    headers = ["method", "verdict", "alpha (max d_i)", "beta (d)", "×\N{NO-BREAK SPACE}MeZO"]
    return [paragraph(f"Cells: {said}."), table(headers, lines)]


def by_family(analysed: Sequence[Analysed]) -> list[tuple[str, list[Analysed]]]:
    """The series of each family, in their order."""
    names = dict.fromkeys(a.series.family for a in analysed)
    return [(name, [a for a in analysed if a.series.family == name]) for name in names]


def unbroken(label: str) -> str:
    """A label that breaks only before its variant."""
    return label.replace(" ", "\N{NO-BREAK SPACE}").replace("\N{NO-BREAK SPACE}(", " (")


def exponent(fit: Fit, name: str) -> str | None:
    """An exponent with its interval, for people."""
    found = fit.exponent(name)
    if found is None:
        return "d is fixed" if fit.fixed_d and name == "d" else None
    return spread(found)


def spread(found: tuple[float, float, float]) -> str:
    """``value [low, high]`` to two places."""
    value, low, high = map(two_places, found)
    return f"{value} [{low}, {high}]".replace(" ", "\N{NO-BREAK SPACE}")


def explanations_section(analysed: Sequence[Analysed]) -> Section | None:
    """HELENE against MeZO, and which matched control does as well; None where no control was run."""
    rows = []
    for e in explain(analysed):
        others = ", ".join(
            f"{TITLES.get(name, name)} {number(value)} [{number(low)}, {number(high)}]"
            for name, (value, low, high) in e.rivals.items()
        )
        home = f"{e.candidate.family.replace('_', ' ')}, {e.candidate.start}"
        rows.append([home, unbroken(e.candidate.label), spread(e.ratio), e.cause, others])
    if not rows:
        return None
    text = (
        "A win is an interval of steps over tuned MeZO's that lies below 1. It is the curvature's only if the matched "
        "controls lose: heavy-ball MeZO, h replaced by its mean, h shuffled over coordinates, step sizes per layer, a "
        "growing step, Sophia's clip, each with the same number of trials. A control that needs at most 3 % more steps "
        "than the winner, within its interval, explains the win."
    )
    headers = ["where", "method", "× MeZO", "explained by", "steps of each control over the method's"]
    return Section("What explains a difference", [paragraph(text), table(headers, rows)], anchor="explanations")


def design_section(design: Design, analysed: Sequence[Analysed]) -> Section:
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
        items = Markup("").join(Markup("<li>{}</li>").format(said) for said in design.not_crossed)
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


def cells_section(analysed: Sequence[Analysed]) -> Section:
    """Every cell, folded away."""
    body: list[Markup | str] = []
    for a in analysed:
        if a.series.borrowed:
            continue
        rows, anchors = [], []
        for c in a.series.cells:
            seeds = ", ".join(number(s) if s != float("inf") else "∞" for s in sorted(c.steps))
            chosen = ", ".join(f"{name} {number(c.best[name])}" for name in _SHOWN if name in c.best)
            key = Markup("<code>{}</code>").format(c.key[:12])
            rows.append([c.n, c.max_d, c.d, seeds, c.status, chosen, _told(c), c.forwards_per_step, key])
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


def _told(c: Measured) -> str | float | None:
    """The predicted count, with the range of 95 % of the medians where it is known."""
    if c.predicted is None or c.scatter is None:
        return c.predicted
    return f"{number(c.predicted)} [{number(c.scatter[0])}, {number(c.scatter[1])}]"


def _home(a: Analysed) -> str:
    return f"{FAMILIES.get(a.series.family, a.series.family)}, per {a.series.start}"
