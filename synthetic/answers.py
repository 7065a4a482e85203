"""The question answered in words that follow from the verdicts. Never imports torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from synthetic.analysis import Analysed, Control
from synthetic.explain import explain
from synthetic.results import FAMILIES

STARTS = {
    "coordinate": "fixed distance per coordinate",
    "layer": "fixed distance per layer",
    "total": "fixed total distance",
    "layer_gap": "fixed gap per layer",
    "total_gap": "fixed total gap",
}
_SAYS = {
    "max_d": "follows max_i d_i, not d",
    "neither": "depends neither on max_i d_i nor on d",
    "d": "follows d, not max_i d_i",
    "not_max_d": "does not change with max_i d_i at fixed d",
    "between": "grows with d at fixed max_i d_i, though more slowly than MeZO's",
}


def answer(analysed: Sequence[Analysed], method: str = "helene", title: str = "HELENE") -> str:
    """One sentence on what the steps of a method follow, over all families and starts.

    It is put together from verdicts alone, so that other records give another sentence.
    """
    mine = [a for a in analysed if a.series.method == method and a.series.cells]
    plain = {(a.series.family, a.series.start) for a in mine if not a.series.variant}
    mine = [a for a in mine if not a.series.variant or (a.series.family, a.series.start) not in plain]
    if not mine:
        return f"{title} was not run in this preset."
    sound = [a for a in mine if a.verdict != "broken_instrument"]
    if not sound:
        return (
            f"No answer on {title}: the controls did not come out as theory predicts, so the instrument is broken "
            "(see Controls)."
        )
    outside = [a for a in sound if a.verdict == "outside_hypotheses"]
    sound = [a for a in sound if a not in outside] or outside
    told = [a for a in sound if a.follows != "unknown"]
    if not told:
        spans = "; ".join(f"{_where([a])}: beta {_interval(a, 'd')}" for a in sound[:3])
        return f"These runs cannot tell whether {title}'s step count follows max_i d_i or d ({spans})."
    groups: dict[str, list[Analysed]] = {}
    for a in told:
        groups.setdefault(a.follows, []).append(a)
    parts = []
    for follows, members in sorted(groups.items(), key=lambda item: -len(item[1])):
        where = "" if len(groups) == 1 and len(members) == len(mine) else f", on {_where(members)}"
        cause = "; the cause is unexplained" if follows in ("max_d", "neither") and method == "helene" else ""
        exponents = f"alpha {_range(members, 'max_d')}, beta {_range(members, 'd')}".replace(", beta undefined", "")
        parts.append(f"{_SAYS[follows]}{where} ({exponents}{cause})")
    left = [a for a in sound if a.follows == "unknown"]
    tail = f"; on {_where(left)} the runs cannot tell" if left else ""
    if outside and outside != sound:
        tail += f"; on {_where(outside)} layers interact, which its hypotheses exclude"
    broken = [a for a in mine if a.verdict == "broken_instrument"]
    tail += f"; on {_where(broken)} the instrument is broken" if broken else ""
    return f"{title}'s step count " + ", and ".join(parts) + tail + "."


def against_mezo(analysed: Sequence[Analysed], method: str = "helene", title: str = "HELENE") -> list[str]:
    """How the steps of a tuned method compare with tuned MeZO's and what explains a win, a sentence per case."""
    rows = [a for a in analysed if a.series.method == method and a.ratio is not None and not a.series.variant]
    better = [a for a in rows if a.ratio and a.ratio[2] < 1.0]
    worse = [a for a in rows if a.ratio and a.ratio[1] > 1.0]
    same = [a for a in rows if a not in better and a not in worse]
    found = [e for e in explain(analysed) if e.candidate.method == method]
    causes = {(e.candidate.family, e.candidate.start): e.cause for e in found}
    out = []
    for cause in dict.fromkeys(_cause_of(a, causes) for a in better):
        group = [a for a in better if _cause_of(a, causes) == cause]
        out.append(
            f"Tuned {title} needs fewer steps than tuned MeZO on {_where(group)} ({_ratios(group)} of MeZO's steps): "
            + _CAUSES.get(cause, f"{cause} does as well, so that is no merit of the curvature.")
        )
    if worse:
        many = f"({_ratios(worse)} times as many)"
        out.append(f"Tuned {title} needs more steps than tuned MeZO on {_where(worse)} {many}.")
    if same:
        out.append(f"Tuned {title} and tuned MeZO cannot be told apart on {_where(same)} (ratio {_ratios(same)}).")
    return out


_CAUSES = {
    "unexplained": "unexplained until the matched controls are run.",
    "curvature": "no matched control does as well, so it is the curvature's.",
}


def _cause_of(a: Analysed, causes: dict[tuple[str, str], str]) -> str:
    return causes.get((a.series.family, a.series.ran_from or a.series.start), "unexplained")


def control_sentence(controls: Iterable[Control]) -> str:
    """Whether the instrument works."""
    rows = list(controls)
    failed = [c for c in rows if not c.passed]
    if not rows:
        return "There are no controls here, so nothing is concluded."
    if failed:
        return (
            f"{len(failed)} of {len(rows)} controls differ from what theory predicts: there the instrument is broken."
        )
    worst = max(c.largest_error for c in rows)
    return (
        f"All {len(rows)} controls come out as theory predicts; no cell's median is further than "
        f"{100 * (math.expm1(worst)):.0f} % from its predicted count."
    )


def _where(rows: Sequence[Analysed]) -> str:
    """Families, with the start where there is only one."""
    families: dict[str, list[str]] = {}
    for a in rows:
        families.setdefault(a.series.family, []).append(a.series.start)
    names = []
    for family, starts in families.items():
        name = FAMILIES.get(family, family)
        names.append(name if len(set(starts)) != 1 else f"{name} ({STARTS.get(starts[0], starts[0])})")
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


def _range(rows: Sequence[Analysed], name: str) -> str:
    values = [e[0] for a in rows if (e := a.main.exponent(name)) is not None]
    if not values:
        return "undefined"
    if len(values) == 1:
        return f"{values[0]:.2f} {_interval(rows[0], name)}".replace("-0.00", "0.00").replace("-", "−")
    low, high = (f"{v:.2f}".replace("-0.00", "0.00").replace("-", "−") for v in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def _interval(a: Analysed, name: str) -> str:
    exponent = a.main.exponent(name)
    return "undetermined" if exponent is None else f"[{exponent[1]:.2f}, {exponent[2]:.2f}]"


def _ratios(rows: Sequence[Analysed]) -> str:
    values = [a.ratio[0] for a in rows if a.ratio]
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"
