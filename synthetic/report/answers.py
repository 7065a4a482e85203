"""The question answered in words that follow from the verdicts. Never imports torch.

Each conclusion says how far it reaches: on how many families that are not quadratic and how many of real data it was
found with every best step size inside its grid, or "quadratics only".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from helene.lab.report.pages import two_places
from synthetic.analysis.explain import Explained, outcome_of
from synthetic.analysis.results import FAMILIES, TITLES
from synthetic.analysis.verdicts import Analysed, Control
from synthetic.report.words import STARTS

_SAYS = {
    "max_d": "follows max_i d_i, not d",
    "slow": "grows with max_i d_i, though more slowly than it, and not with d",
    "neither": "depends neither on max_i d_i nor on d",
    "d": "follows d, not max_i d_i",
    "not_max_d": "does not change with max_i d_i at fixed d",
    "between": "grows with d at fixed max_i d_i, though more slowly than MeZO's",
}
_WITHOUT_D = ("max_d", "slow", "neither")
_FEW = 4
_FOLLOWS = 0.75  # the least exponent that is told as following
_QUADRATIC, _DATA = ("quadratic", "coupled", "gram"), "regression"


def answer(analysed: Sequence[Analysed], method: str = "helene", title: str = "HELENE") -> str:
    """What the steps of a method follow, over all families and starts, in a few sentences.

    They are put together from verdicts alone, so that other records give another sentence.
    """
    mine = [a for a in analysed if a.series.method == method and a.series.cells]
    plain = {(a.series.family, a.series.start) for a in mine if not a.series.variant}
    mine = [a for a in mine if not a.series.variant or (a.series.family, a.series.start) not in plain]
    if not mine:
        return f"{title} was not run in this preset."
    if all(a.main.law is None for a in mine):
        return f"No answer on {title}: {mine[0].main.reason}."
    sound = [a for a in mine if a.verdict != "broken_instrument"]
    if not sound:
        return (
            f"No answer on {title}: the controls did not come out as theory predicts, so the instrument is broken "
            "(see Controls)."
        )
    outside = [a for a in sound if a.verdict == "outside_hypotheses"]
    sound = [a for a in sound if a not in outside] or outside
    resolved = [a for a in sound if a.follows != "unknown"]
    if not resolved:
        spans = "; ".join(f"{_where([a], mine)}: exponent of d {_interval(a, 'd')}" for a in sound[:3])
        return f"These runs cannot tell whether {title}'s step count follows max_i d_i or d ({spans})."
    groups: dict[str, list[Analysed]] = {}
    for a in resolved:
        groups.setdefault(_told(a), []).append(a)
    said = ""
    for follows, members in sorted(groups.items(), key=lambda item: -len(item[1])):
        where = "" if len(groups) == 1 and len(members) == len(mine) else f", on {_where(members, mine)}"
        cause = " The cause is unexplained." if follows in _WITHOUT_D and method == "helene" else ""
        subject, there = (" It", "There the") if said else (f"{title}'s step count", "The")
        exponents = f"{there} exponent of d is {_range(members, 'd')}, that of max_i d_i {_range(members, 'max_d')}."
        exponents = exponents.replace("exponent of d is undefined, that of max_i d_i", "exponent of max_i d_i is")
        said += f"{subject} {_SAYS[follows]}{where}{_reach(members)}. {exponents}{cause}"
    unresolved = [a for a in sound if a.follows == "unknown"]
    said += f" On {_where(unresolved, mine)} the runs cannot tell." if unresolved else ""
    if outside and outside != sound:
        said += f" On {_where(outside, mine)} layers interact, which its hypotheses exclude."
    broken = [a for a in mine if a.verdict == "broken_instrument"]
    return said + (f" On {_where(broken, mine)} the instrument is broken." if broken else "")


def _told(a: Analysed) -> str:
    """The key of `_SAYS`. Steps do not follow max_i d_i where the interval of its exponent ends below 0.75."""
    alpha = a.main.exponent("max_d")
    if a.follows != "max_d" or alpha is None or alpha[2] >= _FOLLOWS:
        return a.follows
    return "slow"


@dataclass(frozen=True)
class Conclusion:
    """A sentence and the series that it rests on."""

    says: str
    rows: tuple[Analysed, ...]


def conclusions(analysed: Sequence[Analysed]) -> list[Conclusion]:
    """Everything that the report concludes, what was asked first."""
    out = []
    for method, title in _ASKED.items():
        rows = tuple(a for a in analysed if a.series.method == method and a.series.cells)
        if rows:
            out.append(Conclusion(answer(analysed, method, title), rows))
    out[1:1] = comparisons(analysed)
    controls = tuple(a for a in analysed if a.control and not a.series.borrowed)
    says = control_sentence(a.control for a in controls if a.control)
    if any(a.main.subset != "all" for a in controls):
        says += (
            " The exponents below are those of the cells with d ≥ 64 where there are eight or more; Controls compares "
            "with theory on all cells."
        )
    return [*out, Conclusion(says, controls)]


_ASKED = {
    "helene": "HELENE",
    "theorem": "The theorem's update",
    "mezo": "MeZO",
    "per_layer": "One direction per layer",
}


def comparisons(analysed: Sequence[Analysed]) -> list[Conclusion]:
    """How the steps of tuned HELENE compare with tuned MeZO's and what explains a win, a sentence per case."""
    rows = [a for a in analysed if a.series.method == "helene" and a.ratio is not None and not a.series.variant]
    explained = {(a.series.family, a.series.start): a.explained for a in rows if a.explained is not None}
    groups: dict[tuple[str, str], list[Analysed]] = {}
    for a in rows:
        assert a.ratio is not None
        outcome = outcome_of(a.ratio)
        e = explained.get((a.series.family, a.series.ran_from or a.series.start))
        groups.setdefault((outcome, e.cause if e and outcome == "win" else ""), []).append(a)
    out = []
    for (outcome, cause), group in sorted(groups.items(), key=lambda item: ("win", "loss", "draw").index(item[0][0])):
        where = f"{_where(group, rows)}{_reach(group)}"
        if outcome == "win":
            why = _CAUSES.get(cause, f"no better than {cause}, so the curvature does not explain it.")
            says = f"Tuned HELENE needs fewer steps than tuned MeZO on {where}, {_ratios(group)} of MeZO's: {why}"
        elif outcome == "loss":
            says = f"Tuned HELENE needs more steps than tuned MeZO on {where}: {_ratios(group)} times as many."
            says += _alike(group, explained)
        else:
            says = f"Tuned HELENE and tuned MeZO cannot be told apart on {where}, ratio {_ratios(group)}."
        out.append(Conclusion(says, tuple(group)))
    return out


def _alike(group: Sequence[Analysed], explained: Mapping[tuple[str, str], Explained]) -> str:
    """Which matched controls need as many steps wherever they were run beside the losers."""
    beside = [e for a in group if (e := explained.get((a.series.family, a.series.ran_from or a.series.start)))]
    names = dict.fromkeys(name for e in beside for name in e.rivals)
    every = [
        TITLES[name] for name in names if all(TITLES[name] in e.cause.split("; ") for e in beside if name in e.rivals)
    ]
    return f" As many are needed by {', '.join(every)}, wherever those were run." if every else ""


_CAUSES = {
    "unexplained": "unexplained until the matched controls are run.",
    "curvature": "no matched control does as well, so the curvature explains it.",
}


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
    errors = [c.largest_error for c in rows if math.isfinite(c.largest_error)]
    missed = len(rows) - len(errors)
    worst = f"{100 * math.expm1(max(errors, default=0.0)):.0f} %"
    tail = f", but for a cell of {missed} of them that most seeds miss" if missed else ""
    inside, known = (sum(column) for column in zip(*(c.within for c in rows), strict=True))
    in_range = (
        f" Of {known} cells for which theory gives the law of the count, {inside} lie where 95 % should. Single cells "
        f"differ because a step size is chosen on 5 or 9 seeds and judged on 10 or 16."
        if known
        else ""
    )
    return (
        f"{'Both' if len(rows) == 2 else f'All {len(rows)}'} controls come out as theory predicts. No cell's median is "
        f"further than {worst} from its predicted count{tail}.{in_range}"
    )


def _where(rows: Sequence[Analysed], among: Sequence[Analysed]) -> str:
    """Families by name, with start and variant where not all of theirs are meant; by number where they are many."""
    families, every = _runs(rows), _runs(among)
    if len(families) > _FEW:
        return f"{len(families)} of {len(every)} families of problems"
    names = []
    for family, starts in families.items():
        name, others = FAMILIES.get(family, family), every.get(family, starts)
        places = [
            ", ".join([STARTS.get(start, start), *(sorted(variants) if others.get(start, variants) - variants else ())])
            for start, variants in sorted(starts.items())
        ]
        joined = ("; " if any("," in place for place in places) else " and ").join(places)
        names.append(f"{name} ({joined})" if others != starts else name)
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


def _runs(rows: Sequence[Analysed]) -> dict[str, dict[str, set[str]]]:
    """By family and start, the variants."""
    families: dict[str, dict[str, set[str]]] = {}
    for a in rows:
        families.setdefault(a.series.family, {}).setdefault(a.series.start, set()).add(a.series.variant)
    return families


def _reach(rows: Sequence[Analysed]) -> str:
    """On how many families that are not quadratic, and on real data, with every best step size inside its grid."""
    inside = [a for a in rows if not any(c.edge for c in a.series.cells)]
    kinds = {a.series.family: a.series.problem for a in inside}
    other = sum(kind not in (*_QUADRATIC, _DATA) for kind in kinds.values())
    data = sum(kind == _DATA for kind in kinds.values())
    if not other and not data:
        return " (quadratics only)"
    if len({a.series.family for a in rows}) <= _FEW:
        return ""
    return f", {other or 'none'} of them not quadratic and {data or 'none'} on real data"


def _range(rows: Sequence[Analysed], name: str) -> str:
    known = [(exponent[0], a) for a in rows if (exponent := a.main.exponent(name)) is not None]
    if not known:
        return "undefined"
    values = [value for value, _ in known]
    if len(known) == 1:
        return f"{two_places(*values)} {_interval(known[0][1], name)}"
    low, high = two_places(min(values)), two_places(max(values))
    return low if low == high else f"{low} to {high}"


def _interval(a: Analysed, name: str) -> str:
    exponent = a.main.exponent(name)
    return "undetermined" if exponent is None else f"[{two_places(exponent[1])}, {two_places(exponent[2])}]"


def _ratios(rows: Sequence[Analysed]) -> str:
    values = [a.ratio[0] for a in rows if a.ratio]
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"
