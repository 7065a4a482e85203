"""The sections of the report's page. Never imports torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from helene.lab.figures import Drawing
from helene.lab.pages import Section, badge, details, figure, number, paragraph, subtitle, table
from synthetic.analysis import Analysed, Fit
from synthetic.answers import STARTS
from synthetic.design import CAP, RACE, Design
from synthetic.export import tuning_of
from synthetic.results import FAMILIES

Pictures = dict[tuple[str, str], list[tuple[str, Drawing, str]]]
_HOW_TO_READ = (
    "The tables give T ~ (max d_i)^alpha d^beta with 95 % intervals, on the cells with d ≥ 64 where there are eight "
    "or more of them. The verdict is on “the steps follow max d_i and not d”. Scatter: standard deviation of log T "
    "about the law. Best explanation: the law with the least error on cells left out of its fit, and that error. × "
    "MeZO: steps over tuned MeZO's, geometric mean."
)
_SHOWN = ("q", "floor_ratio", "lr", "radius")
_THEORIES = {
    "exact chain": "exact in law: a Markov chain of one number per eigenvalue (and layer)",
    "mean field": "mean field of large d, with the exact finite-size factor of an isotropic quadratic",
    "quadratic model": "second moments of the quadratic model at the minimizer",
}


def family_sections(analysed: Sequence[Analysed], pictures: Pictures) -> list[Section]:
    """One section per family: a table of exponents and the figures of each start."""
    out: list[Section] = []
    for family in dict.fromkeys(a.series.family for a in analysed):
        body: list[Markup | str] = [paragraph(_HOW_TO_READ)] if not out else []
        for start in dict.fromkeys(a.series.start for a in analysed if a.series.family == family):
            rows = [a for a in analysed if (a.series.family, a.series.start) == (family, start)]
            body.append(subtitle(f"Start: {STARTS.get(start, start)}", f"{family}-{start}"))
            body.append(_exponents(rows))
            borrowed = dict.fromkeys(a.series.borrowed for a in rows if a.series.borrowed)
            names = ", ".join(a.series.label for a in rows if a.series.borrowed)
            body += [paragraph(f"Same runs as from the first start for {names}: {reason}.") for reason in borrowed]
            body += [figure(drawing, caption) for _, drawing, caption in pictures.get((family, start), [])]
        out.append(Section(FAMILIES.get(family, family).capitalize(), body, anchor=family))
    return out


def _exponents(rows: Sequence[Analysed]) -> Markup:
    headers = ["method", "verdict", "alpha (max d_i)", "beta (d)", "cells", "scatter", "best explanation", "× MeZO"]
    lines = []
    for a in rows:
        law = a.main.law
        best = a.explanations[0] if a.explanations else None
        lines.append(
            [
                Markup('<a href="#cells-{}">{}</a>').format(a.series.lender, a.series.label),
                badge(a.verdict),
                exponent(a.main, "max_d"),
                exponent(a.main, "d"),
                f"{law.num_cells if law else 0} of {len(a.series.cells)}",
                None if law is None else f"{100 * law.residual_sd:.0f} %",
                f"{best['name']} ({100 * best['error']:.0f} %)" if best else None,
                None if a.ratio is None else spread(a.ratio),
            ]
        )
    return table(headers, lines)


def exponent(fit: Fit, name: str) -> str | None:
    """An exponent with its interval, for people."""
    found = fit.exponent(name)
    if found is None:
        return "d is fixed" if fit.fixed_d and name == "d" else None
    return spread(found)


def spread(found: tuple[float, float, float]) -> str:
    """``value [low, high]`` to two places."""
    value, low, high = (f"{v:.2f}".replace("-0.00", "0.00").replace("-", "−") for v in found)
    return f"{value} [{low}, {high}]".replace(" ", "\N{NO-BREAK SPACE}")


def controls_section(analysed: Sequence[Analysed]) -> Section:
    """Predicted against measured exponents of the two controls."""
    rows = []
    for a in analysed:
        if (c := a.control) is None:
            continue
        rows.append(
            [
                FAMILIES.get(a.series.family, a.series.family),
                a.series.start,
                f"{c.kind}: {a.series.label}",
                badge("passed" if c.passed else "broken_instrument"),
                round(c.predicted.get("max_d", float("nan")), 3),
                exponent(c.measured, "max_d"),
                round(c.predicted["d"], 3) if "d" in c.predicted else None,
                exponent(c.measured, "d"),
                f"{100 * math.expm1(c.largest_error):.0f} %",
                ", ".join(c.theory),
            ]
        )
    headers = ["family", "start", "control", "", "alpha predicted", "measured", "beta predicted", "measured"]
    body: list[Markup | str] = [
        paragraph(
            "Theory says what the two controls must give on these very cells, without running the simulator. MeZO, "
            "with one direction for all layers, is the negative control: its steps follow d. One direction per "
            "layer, each with its own projected gradient, is the positive one: its steps may follow max d_i (its "
            "loss evaluations cannot). Where a control is off by more than 0.05 plus half its interval, nothing is "
            "concluded."
        ),
        table([*headers, "worst cell", "theory"], rows),
    ]
    used = dict.fromkeys(name for a in analysed if a.control for name in a.control.theory)
    body += [paragraph(f"{name.capitalize()}: {_THEORIES.get(name, name)}.") for name in used]
    return Section("Controls", body)


def guards_section(analysed: Sequence[Analysed]) -> Section:
    """The same exponents on other subsets, and the competing laws."""
    rows = []
    for a in analysed:
        if a.series.borrowed:
            continue
        row: list[Any] = [_home(a), a.series.label]
        for fit in a.fits.values():
            row += [exponent(fit, "max_d"), exponent(fit, "d")]
        law = a.fits["all"].law
        spread = law.largest_local_slope_difference if law else {}
        row += [round(spread[axis], 2) if spread.get(axis, float("nan")) == spread.get(axis) else None for axis in "nw"]
        rows.append(row)
    headers = ["where", "method"]
    headers += [f"{name}, {subset}" for subset in ("all", "d ≥ 64", "w ≥ 16") for name in ("alpha", "beta")]
    laws = [
        [_home(a), a.series.label, *(f"{e['name']}: {100 * e['error']:.0f} %" for e in a.explanations[:4])]
        for a in analysed
        if len(a.explanations) >= 4 and not a.series.borrowed
    ]
    return Section(
        "Guards",
        [
            paragraph(
                "Bootstrap intervals know nothing of lack of fit. So the law is fitted to three subsets, local slopes "
                "are compared along n and w (0 for a true power law), and competing laws are judged by their error on "
                "cells left out."
            ),
            table([*headers, "Δ slope n", "Δ slope w"], rows),
            details(
                "Competing laws, best first, with their held-out error",
                [table(["where", "method", "1st", "2nd", "3rd", "4th"], laws)],
            ),
        ],
    )


def tuning_section(analysed: Sequence[Analysed]) -> Section:
    """What was chosen, how sharp the choice is, and what missed."""
    rows = []
    for a in analysed:
        if a.series.borrowed or not a.series.cells:
            continue
        t = tuning_of(a.series.cells)
        span = t["step_size_range"]
        chosen = "; ".join(f"{n}: " + ", ".join(f"{v} in {k}" for v, k in c.items()) for n, c in t["chosen"].items())
        rows.append(
            [
                _home(a),
                a.series.label,
                t["trials"],
                None if span is None else f"{span[0]:.2g} to {span[1]:.2g}, median {t['step_size_median']:.2g}",
                chosen or None,
                len(t["at_edge"]),
                len(t["censored"]),
                t["useful_width"],
                None if t["diverged_share"] is None else f"{100 * t['diverged_share']:.0f} %",
                None if t["stalled_share"] is None else f"{100 * t['stalled_share']:.0f} %",
            ]
        )
    headers = ["where", "method", "trials", "chosen q", "other settings", "at edge", "missed", "width", "diverged"]
    return Section(
        "Tuning",
        [
            paragraph(
                "Every tuned method has the same number of trials, on seeds that are not used to judge it. q is the "
                "step size in natural units: 1 is 1/(tr H + 2 λ_max) for SPSA, times 1 − beta1 with momentum, times "
                "the floor for HELENE, whose floors are ratios to h_0 = B‖g_0‖². Width: the factor that q may be "
                "off at a cost of 1.5 times the best count. Cells whose best q is the first or last of its grid "
                "count as “at edge”, cells whose median seed missed the target as “missed”. Methods with one trial "
                "are prescribed, not tuned."
            ),
            table([*headers, "stalled"], rows),
        ],
    )


def design_section(design: Design, analysed: Sequence[Analysed]) -> Section:
    """What is run, and how."""
    rows = []
    for a in analysed:
        s = a.series
        cells = f"{len(s.cells)}" + (" (borrowed)" if s.borrowed else "")
        axes = zip(*[(c.n, c.max_d, c.d) for c in s.cells], strict=True)
        spans = [f"{min(v)} to {max(v)}" for v in axes] or ["", "", ""]
        note = "; ".join(filter(None, [s.borrowed, *s.unsupported]))
        rows.append([FAMILIES.get(s.family, s.family), STARTS.get(s.start, s.start), s.label, cells, *spans, note])
    targets = sorted({cell.config["target"] for cell in design.cells})
    goals = " or ".join(f"{t:g}" for t in targets)
    text = (
        "n layers of width w, d = n w. A run ends when the loss, above its minimum, first falls to the target: "
        f"{goals} of its value at the start (the larger for zeroth-order methods). Test seeds: 10 from d = 64 on, 16 "
        f"below; tuning seeds: 5 and 9, others. A run that misses within {CAP:g} times the predicted count enters "
        f"its median as infinity. While tuning, runs stop at {RACE:g} times the best median, which cannot change the "
        "choice. Directions are those of the optimizers, bit for bit, and common to all step sizes and methods; "
        "slopes along them are exact derivatives, which equal two-point ones to rounding."
    )
    return Section(
        "Design",
        [paragraph(text), table(["family", "start", "method", "cells", "n", "max d_i", "d", "note"], rows)],
    )


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
            rows.append([c.n, c.max_d, c.d, seeds, c.status, chosen, c.predicted, c.forwards_per_step, key])
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


def _home(a: Analysed) -> str:
    return f"{FAMILIES.get(a.series.family, a.series.family)}, per {a.series.start}"
