"""Why the page's numbers can be trusted: the controls, other fits, and what was tuned. Never imports torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from markupsafe import Markup

from helene.lab.report.pages import Section, badge, number, paragraph, subtitle, table, two_places
from synthetic.analysis.exponents import Fit
from synthetic.analysis.results import FAMILIES
from synthetic.analysis.sensitivity import sensitivities
from synthetic.analysis.tuning import cells_where_h_acts, tuning_of
from synthetic.analysis.verdicts import Analysed, Control
from synthetic.design import RACE
from synthetic.report.words import by_family, exponent, unbroken

_THEORIES = {
    "exact chain": "exact in law: a Markov chain of one number per eigenvalue (and layer)",
    "mean field": "the density of a coordinate among many, with the finite-size factor of isotropic quadratics",
    "direct draws": "x ← x − η z (zᵀ∇L) drawn by other code with other random numbers, for want of a smaller chain",
    "closed form": "at best the mean loss falls by 1 − 1/(d + 2) a step, d that of one layer with a direction each",
    "quadratic model": "second moments of the quadratic model at the minimizer",
}


def guard_sections(analysed: Sequence[Analysed]) -> list[Section]:
    """The controls, the same exponents by other fits, what was tuned, and what tuning is worth."""
    return [_controls(analysed), _guards(analysed), _tuning(analysed), _sensitivity(analysed)]


def _controls(analysed: Sequence[Analysed]) -> Section:
    """Predicted against measured exponents of the two controls."""
    rows = []
    for a in analysed:
        if (c := a.control) is None or a.series.borrowed:
            continue
        pair = [_against(c.measured, name, c.predicted.get(name)) for name in ("max_d", "d")]
        worst = f"{100 * math.expm1(c.largest_error):.0f}\N{NO-BREAK SPACE}%"
        passed = badge("passed" if c.passed else "broken_instrument")
        home = f"{a.series.family.replace('_', ' ')}, {a.series.start}".replace(" ", "\N{NO-BREAK SPACE}")
        inside = "–" if not c.within[1] else f"{c.within[0]} of {c.within[1]}".replace(" ", "\N{NO-BREAK SPACE}")
        rows.append([home, f"{c.kind}", passed, *pair, worst, inside, _theories(c)])
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
            "says how many cells lie in theirs. Where by theory itself the median may be a miss or far beyond the "
            "best, so that the range has no end, a cell determines no exponent and is left out. Exponents here are "
            "those of all other cells. The conclusions rest on the cells with d ≥ 64 where there are eight or more, so "
            "theirs may differ by some hundredths."
        ),
        table(headers, rows),
    ]
    used = dict.fromkeys(name for a in analysed if a.control for name in a.control.theory)
    body += [paragraph(f"{name.capitalize()}: {_THEORIES.get(name, name)}.") for name in used]
    return Section("Controls", body)


def _theories(control: Control) -> str:
    left_out = f" ({control.left_out} cells left out)" if control.left_out else ""
    return ", ".join(control.theory) + left_out


def _against(fit: Fit, name: str, predicted: float | None) -> str | None:
    measured = exponent(fit, name)
    if predicted is None:
        return measured
    return f"{two_places(predicted)}, {measured or '–'}"


def _guards(analysed: Sequence[Analysed]) -> Section:
    """The same exponents on other subsets, and the competing laws."""
    body: list[Markup | str] = [
        paragraph(
            "Bootstrap intervals know nothing of lack of fit. So the law is fitted to three subsets (alpha / beta; "
            "their intervals are in `exponents.csv`), the scatter of log T about the law on all cells is shown, "
            "local slopes are compared along n and w (largest less smallest; 0 for a true power law), and competing "
            "laws are judged by their error on cells left out."
        )
    ]
    headers = [
        "method",
        "start",
        "all",
        "d ≥ 64",
        "w ≥ 16",
        "scatter",
        "Δ along n",
        "Δ along w",
        "best laws (held-out error)",
    ]
    return Section("Guards", [*body, *_tables(analysed, "guards", _guarded, headers, (5, 6, 7))])


def _guarded(a: Analysed) -> list[Any] | None:
    if not a.series.cells:
        return None
    law = a.fits["all"].law
    slopes = law.largest_local_slope_difference if law else {}
    steep = [round(v, 2) if (v := slopes.get(axis, math.nan)) == v else None for axis in ("n", "w")]
    best_laws = ", ".join(f"{e['name']} {100 * e['error']:.0f} %" for e in a.laws[:2])
    scatter = None if law is None else f"{100 * law.residual_sd:.0f}\N{NO-BREAK SPACE}%"
    return [*(_both(fit) for fit in a.fits.values()), scatter, *steep, best_laws or None]


def _tables(
    analysed: Sequence[Analysed],
    anchor: str,
    row: Callable[[Analysed], list[Any] | None],
    headers: Sequence[str],
    numeric: Sequence[int],
) -> list[Markup]:
    """A table per family of what each series ran itself: its method, its start, and what ``row`` gives, if anything."""
    body = []
    for family, members in by_family(analysed):
        own = [(a, row(a)) for a in members if not a.series.borrowed]
        rows = [[unbroken(a.series.label), a.series.start, *columns] for a, columns in own if columns is not None]
        if rows:
            body.append(subtitle(FAMILIES.get(family, family), f"{anchor}-{family}"))
            body.append(table(headers, rows, numeric=numeric))
    return body


def _both(fit: Fit) -> str | None:
    values = [two_places(e[0]) for name in ("max_d", "d") if (e := fit.exponent(name)) is not None]
    return "\N{NO-BREAK SPACE}/\N{NO-BREAK SPACE}".join(values) or None


def _tuning(analysed: Sequence[Analysed]) -> Section:
    """What was chosen, how sharp the choice is, and what missed."""
    body: list[Markup | str] = [
        paragraph(
            "Every tuned method has the same number of trials, 24, on seeds that are not used to judge it. q is the "
            "step size in natural units: 1 is 1/(tr H + 2 λ_max) for SPSA, times 1 − beta1 with momentum, times the "
            "floor for HELENE, whose floors are ratios to h_0 = B‖g_0‖². Width: the factor that q may be off at a "
            "cost of 1.5 times the best count. At edge: cells whose best q is the first or last of its grid; "
            "missed: judged runs that missed the target. The theorem's update is prescribed, not tuned."
        )
    ]
    headers = ["method", "start", "chosen q: least, median, most", "other settings: cells", "at edge", "missed"]
    headers += ["width", "diverged, stalled"]
    body += _floors(analysed)
    return Section("Tuning", [*body, *_tables(analysed, "tuning", _tuned, headers, (4, 5, 6))])


def _floors(analysed: Sequence[Analysed]) -> list[Markup]:
    """In how many cells h acts at all, by method; nothing where no method was tuned over several floors."""
    rows = []
    for label in dict.fromkeys(a.series.label for a in analysed):
        own = [a.series for a in analysed if a.series.label == label and not a.series.borrowed]
        acts, known = cells_where_h_acts(cell for series in own for cell in series.cells)
        if known:
            rows.append([label, known, known - acts])
    text = (
        "h never acts where the chosen trial takes the same steps on every tuning seed as another that differs in its "
        "floor alone. Both floors lie above every h there, and a control that changes h tells nothing."
    )
    headers = ["method", "cells with several floors", "h never acts in"]
    return [paragraph(text), table(headers, rows)] if rows else []


def _tuned(a: Analysed) -> list[Any] | None:
    if not any("q" in c.best for c in a.series.cells):
        return None
    t = tuning_of(a.series.cells)
    low, high = t["step_size_range"]
    q = f"{low:.2g} – {t['step_size_median']:.2g} – {high:.2g}".replace(" ", "\N{NO-BREAK SPACE}")
    chosen = "; ".join(
        f"{name} " + ", ".join(f"{value}: {times}" for value, times in counts.items())
        for name, counts in t["chosen"].items()
    )
    lost = f"{100 * t['diverged_share']:.0f} %, {100 * t['stalled_share']:.0f} %".replace(" %", "\N{NO-BREAK SPACE}%")
    missed = "{} of {}".format(*missed_of(a)).replace(" ", "\N{NO-BREAK SPACE}")
    return [q, chosen or None, len(t["at_edge"]), missed, t["useful_width"], lost]


def missed_of(a: Analysed) -> tuple[int, int]:
    """How many of the judged runs of a series missed the target, and how many there are."""
    steps = [count for cell in a.series.cells for count in cell.steps]
    return sum(map(math.isinf, steps)), len(steps)


def _sensitivity(analysed: Sequence[Analysed]) -> Section:
    """What tuning is worth, per method and family."""
    rows = []
    for s in sensitivities(a.series for a in analysed):
        costs = "; ".join(
            f"{name} " + ", ".join(f"{number(value)}: {_up_to(ratio)}" for value, ratio in values.items())
            for name, values in s.settings.items()
        )
        lost = None if s.lost is None else f"{100 * s.lost:.0f}\N{NO-BREAK SPACE}%"
        untuned = None if s.untuned is None else _up_to(s.untuned)
        rows.append([s.family.replace("_", " "), unbroken(s.method), s.width, untuned, lost, costs or None])
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
