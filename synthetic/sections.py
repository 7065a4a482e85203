"""The sections of the report's page. Never imports torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from helene.lab.figures import Drawing
from helene.lab.pages import Section, badge, details, figure, number, paragraph, subtitle, table
from synthetic.analysis import Analysed, Fit
from synthetic.answers import STARTS
from synthetic.design import CAP, RACE, Design
from synthetic.explain import explain
from synthetic.export import tuning_of
from synthetic.results import FAMILIES, TITLES, Measured
from synthetic.sensitivity import sensitivities

Pictures = dict[tuple[str, str], list[tuple[str, Drawing, str]]]
_HOW_TO_READ = (
    "The tables give T ~ (max d_i)^alpha d^beta with 95 % intervals, on the cells with d ≥ 64 where there are eight or "
    "more of them. The verdict is on “the steps follow max d_i and not d”. × MeZO: steps over tuned MeZO's, "
    "geometric mean."
)
_SHOWN = ("q", "floor_ratio", "lr", "radius")
_THEORIES = {
    "exact chain": "exact in law: a Markov chain of one number per eigenvalue (and layer)",
    "mean field": "the density of a coordinate among many, with the finite-size factor of isotropic quadratics",
    "direct draws": "x ← x − η z (zᵀ∇L) drawn by other code with other random numbers, for want of a smaller chain",
    "closed form": "at best the mean loss falls by 1 − 1/(d + 2) a step, d that of one layer with a direction each",
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
        link = Markup('<a href="#cells-{}">{}</a>').format(a.series.lender, _unbroken(a.series.label))
        ratio = None if a.ratio is None else spread(a.ratio)
        lines.append([link, badge(a.verdict), exponent(a.main, "max_d"), exponent(a.main, "d"), ratio])
    used = {(a.main.subset, a.main.law.num_cells, len(a.series.cells)) for a in rows if a.main.law is not None}
    said = " or ".join(
        f"all {most}" if subset == "all" else f"the {count} of {most} with {subset.replace('>=', '≥')}"
        for subset, count, most in sorted(used)
    )
    headers = ["method", "verdict", "alpha (max d_i)", "beta (d)", "×\N{NO-BREAK SPACE}MeZO"]
    return [paragraph(f"Cells: {said}."), table(headers, lines)]


def _unbroken(label: str) -> str:
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
    value, low, high = (f"{v:.2f}".replace("-0.00", "0.00").replace("-", "−") for v in found)
    return f"{value} [{low}, {high}]".replace(" ", "\N{NO-BREAK SPACE}")


def controls_section(analysed: Sequence[Analysed]) -> Section:
    """Predicted against measured exponents of the two controls."""
    rows = []
    for a in analysed:
        if (c := a.control) is None:
            continue
        pair = [_against(c.measured, name, c.predicted.get(name)) for name in ("max_d", "d")]
        worst = f"{100 * math.expm1(c.largest_error):.0f}\N{NO-BREAK SPACE}%"
        passed = badge("passed" if c.passed else "broken_instrument")
        home = f"{a.series.family.replace('_', ' ')}, {a.series.start}".replace(" ", "\N{NO-BREAK SPACE}")
        inside = "–" if not c.within[1] else f"{c.within[0]} of {c.within[1]}".replace(" ", "\N{NO-BREAK SPACE}")
        rows.append([home, f"{c.kind}", passed, *pair, worst, inside, ", ".join(c.theory)])
    headers = [
        "where",
        "control",
        "",
        "alpha: predicted, measured",
        "beta: predicted, measured",
        "worst cell",
        "cells in range",
        "theory",
    ]
    body: list[Markup | str] = [
        paragraph(
            "Theory says what the two controls must give on these very cells, without running the simulator. MeZO, "
            "with one direction for all layers, is the negative control: its steps follow d. One direction per "
            "layer, each with its own projected gradient, is the positive one: its steps may follow max d_i (its "
            "loss evaluations cannot). Where a control is off by more than 0.05 plus half its interval, nothing is "
            "concluded. A single cell scatters, for its step size is chosen on few seeds and judged on few others. "
            "Where theory gives the whole law of the count, its range holds 95 % of the medians so found: the table "
            "says how many cells lie in theirs."
        ),
        table(headers, rows),
    ]
    used = dict.fromkeys(name for a in analysed if a.control for name in a.control.theory)
    body += [paragraph(f"{name.capitalize()}: {_THEORIES.get(name, name)}.") for name in used]
    return Section("Controls", body)


def _against(fit: Fit, name: str, predicted: float | None) -> str | None:
    measured = exponent(fit, name)
    if predicted is None:
        return measured
    return f"{predicted:.2f}, ".replace("-0.00", "0.00").replace("-", "−") + (measured or "–")


def guards_section(analysed: Sequence[Analysed]) -> Section:
    """The same exponents on other subsets, and the competing laws."""
    body: list[Markup | str] = [
        paragraph(
            "Bootstrap intervals know nothing of lack of fit. So the law is fitted to three subsets (alpha / beta; "
            "their intervals are in `exponents.csv`), the scatter of log T about the law on all cells is shown, "
            "local slopes are compared along n and w (largest less smallest; 0 for a true power law), and competing "
            "laws are judged by their error on cells left out."
        )
    ]
    for family, members in _by_family(analysed):
        rows = []
        for a in members:
            if a.series.borrowed or not a.series.cells:
                continue
            law = a.fits["all"].law
            slopes = law.largest_local_slope_difference if law else {}
            steep = [round(v, 2) if (v := slopes.get(axis, math.nan)) == v else None for axis in ("n", "w")]
            laws = ", ".join(f"{e['name']} {100 * e['error']:.0f} %" for e in a.explanations[:2])
            both = [_both(fit) for fit in a.fits.values()]
            scatter = None if law is None else f"{100 * law.residual_sd:.0f}\N{NO-BREAK SPACE}%"
            rows.append([a.series.start, _unbroken(a.series.label), *both, scatter, *steep, laws or None])
        body.append(subtitle(FAMILIES.get(family, family), f"guards-{family}"))
        headers = [
            "start",
            "method",
            "all",
            "d ≥ 64",
            "w ≥ 16",
            "scatter",
            "Δ along n",
            "Δ along w",
            "best laws (held-out error)",
        ]
        body.append(table(headers, rows, numeric=(5, 6, 7)))
    return Section("Guards", body)


def _both(fit: Fit) -> str | None:
    values = [f"{e[0]:.2f}" for name in ("max_d", "d") if (e := fit.exponent(name)) is not None]
    return "\N{NO-BREAK SPACE}/\N{NO-BREAK SPACE}".join(values).replace("-0.00", "0.00").replace("-", "−") or None


def tuning_section(analysed: Sequence[Analysed]) -> Section:
    """What was chosen, how sharp the choice is, and what missed."""
    body: list[Markup | str] = [
        paragraph(
            "Every tuned method has the same number of trials, 24, on seeds that are not used to judge it. q is the "
            "step size in natural units: 1 is 1/(tr H + 2 λ_max) for SPSA, times 1 − beta1 with momentum, times the "
            "floor for HELENE, whose floors are ratios to h_0 = B‖g_0‖². Width: the factor that q may be off at a "
            "cost of 1.5 times the best count. At edge: cells whose best q is the first or last of its grid; "
            "missed: cells whose median seed missed the target. The theorem's update is prescribed, not tuned."
        )
    ]
    for family, members in _by_family(analysed):
        rows = []
        for a in members:
            if a.series.borrowed or not any("q" in c.best for c in a.series.cells):
                continue
            t = tuning_of(a.series.cells)
            low, high = t["step_size_range"]
            q = f"{low:.2g} – {t['step_size_median']:.2g} – {high:.2g}".replace(" ", "\N{NO-BREAK SPACE}")
            chosen = "; ".join(
                f"{name} " + ", ".join(f"{value}: {times}" for value, times in counts.items())
                for name, counts in t["chosen"].items()
            )
            lost = f"{100 * t['diverged_share']:.0f} %, {100 * t['stalled_share']:.0f} %".replace(
                " %", "\N{NO-BREAK SPACE}%"
            )
            numbers = [len(t["at_edge"]), len(t["censored"]), t["useful_width"]]
            rows.append([a.series.start, _unbroken(a.series.label), q, chosen or None, *numbers, lost])
        if rows:
            body.append(subtitle(FAMILIES.get(family, family), f"tuning-{family}"))
            headers = ["start", "method", "chosen q: least, median, most", "other settings: cells", "at edge", "missed"]
            body.append(table([*headers, "width", "diverged, stalled"], rows, numeric=(4, 5, 6)))
    return Section("Tuning", body)


def explanations_section(analysed: Sequence[Analysed]) -> Section | None:
    """HELENE against MeZO, and which matched control does as well; None where no control was run."""
    rows = []
    for e in explain(analysed):
        others = ", ".join(
            f"{TITLES.get(name, name)} {number(value)} [{number(low)}, {number(high)}]"
            for name, (value, low, high) in e.rivals.items()
        )
        home = f"{e.candidate.family.replace('_', ' ')}, {e.candidate.start}"
        rows.append([home, _unbroken(e.candidate.label), spread(e.ratio), e.cause, others])
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


def sensitivity_section(analysed: Sequence[Analysed]) -> Section:
    """What tuning is worth, per method and family."""
    rows = []
    for s in sensitivities(a.series for a in analysed):
        told = "; ".join(
            f"{name} " + ", ".join(f"{number(value)}: {_up_to(ratio)}" for value, ratio in values.items())
            for name, values in s.settings.items()
        )
        lost = None if s.lost is None else f"{100 * s.lost:.0f}\N{NO-BREAK SPACE}%"
        untuned = None if s.untuned is None else _up_to(s.untuned)
        rows.append([s.family.replace("_", " "), _unbroken(s.method), s.width, untuned, lost, told or None])
    text = (
        "From the tuning runs. Width: the factor by which the step size may be off at a cost of 1.5 times the best "
        "count. Untuned: the count at q = 1, other settings in the middle, over the best one. Lost: runs that "
        "diverged or stalled before 1.5 times the best count. Other settings: the best count with each value over "
        "the best of all. HELENE's gamma and B are no settings of their own: scaling B, λ and the step size "
        "together, or gamma and the step size, changes nothing, so the floor's ratio to B‖g_0‖² says it all."
    )
    headers = ["family", "method", "width", "untuned", "lost", "other settings: cost"]
    return Section("Sensitivity", [paragraph(text), table(headers, rows, numeric=(2,))])


def _up_to(ratio: float) -> str:
    return f"{ratio:.2f}" if math.isfinite(ratio) else f"> {RACE:g}"


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
    for family, members in _by_family(analysed):
        rows = []
        for a in members:
            s = a.series
            axes = zip(*[(c.n, c.max_d, c.d) for c in s.cells], strict=True)
            spans = [f"{min(v)} to {max(v)}".replace(" ", "\N{NO-BREAK SPACE}") for v in axes] or ["", "", ""]
            cells = f"{len(s.cells)}, those per {s.ran_from}" if s.borrowed else f"{len(s.cells)}"
            rows.append([s.start, _unbroken(s.label), cells, *spans, "; ".join(s.unsupported) or None])
        body.append(subtitle(FAMILIES.get(family, family), f"design-{family}"))
        body += [paragraph(design.why[family])] if family in design.why else []
        body.append(table(["start", "method", "cells", "n", "max d_i", "d", "left out because"], rows))
    return Section("Methods and design", body, anchor="design")


def _by_family(analysed: Sequence[Analysed]) -> list[tuple[str, list[Analysed]]]:
    names = dict.fromkeys(a.series.family for a in analysed)
    return [(name, [a for a in analysed if a.series.family == name]) for name in names]


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
