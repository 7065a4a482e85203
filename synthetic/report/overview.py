"""The report in three tables: every family, every conclusion, every difference explained. Never imports torch."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from helene.lab.pages import Section, badge, number, paragraph, subtitle, table
from synthetic.analysis.results import FAMILIES, TITLES
from synthetic.analysis.tuning import cells_where_h_acts
from synthetic.analysis.verdicts import Analysed
from synthetic.report.answers import STARTS, Conclusion
from synthetic.report.words import at, exponent, spread, unbroken


def overview_sections(analysed: Sequence[Analysed], concluded: Sequence[Conclusion]) -> list[Section]:
    """Every family at a glance, what each conclusion rests on, and what explains the differences from MeZO."""
    explained = _explanations(analysed)
    return [_glance(analysed), _conclusions(concluded), *([explained] if explained else [])]


def _glance(analysed: Sequence[Analysed]) -> Section:
    """A row for each family and start: what HELENE's steps follow, beside the two controls."""
    rows = []
    for family, start in dict.fromkeys((a.series.family, a.series.start) for a in analysed):
        by_method = {a.series.method: a for a in reversed(analysed) if at(a, family, start) and not a.series.variant}
        if "mezo" not in by_method:
            continue
        helene = by_method.get("helene")
        link = Markup('<a href="#{}-{}">{}</a>, {}').format(
            family, start, FAMILIES.get(family, family), STARTS.get(start, start).removeprefix("fixed ")
        )
        ratio = None if helene is None or helene.ratio is None else spread(helene.ratio)
        rows.append(
            [
                link,
                None if helene is None else badge(helene.verdict),
                *(None if helene is None else exponent(helene.main, name) for name in ("d", "max_d")),
                f"{_value(by_method.get('mezo'), 'd')},\N{NO-BREAK SPACE}{_value(by_method.get('per_layer'), 'max_d')}",
                ratio,
            ]
        )
    text = (
        "T ~ (max d_i)^alpha d^beta with 95 % intervals. The verdict is on “HELENE’s steps follow max d_i and not d”, "
        "read against the two controls: MeZO, whose steps follow d (its beta stands first), and one direction per "
        "layer, whose steps may follow max d_i (its alpha). Last column: HELENE’s steps over MeZO’s, both tuned; a "
        "step of either takes two forwards, so that it is the ratio of forwards too."
    )
    headers = ["problems, start", "verdict", "HELENE: beta", "alpha", "controls", "HELENE / MeZO"]
    return Section("At a glance", [paragraph(text), table(headers, rows)])


def _value(a: Analysed | None, name: str) -> str:
    value = None if a is None else a.main.exponent(name)
    return "–" if value is None else spread(value).partition("\N{NO-BREAK SPACE}")[0]


def _conclusions(concluded: Sequence[Conclusion]) -> Section:
    """A block per conclusion: the sentence, then the series and cells that it was drawn from."""
    body: list[Markup | str] = [
        paragraph("Each sentence above with the cells that it rests on; the numbers lead to the runs themselves.")
    ]
    for index, c in enumerate(concluded):
        rows = []
        for a in c.rows:
            s = a.series
            edges = sum(cell.edge for cell in s.cells)
            where = f"{FAMILIES.get(s.family, s.family)}, {STARTS.get(s.start, s.start)}"
            sizes = [cell.d for cell in s.cells]
            span = f"{min(sizes)} to {max(sizes)}" if min(sizes) < max(sizes) else f"{sizes[0]}"
            law = a.main.law
            used = len(s.cells) if law is None else law.num_cells
            count = Markup('<a href="#cells-{}">{}</a>').format(s.lender, f"{used} of {len(s.cells)} cells")
            verdict = (
                badge("passed" if a.control and a.control.passed else a.verdict) if a.control else badge(a.verdict)
            )
            exponents = [exponent(a.main, name) for name in ("max_d", "d")]
            ratio = None if a.ratio is None else spread(a.ratio)
            rows.append([where, s.label, verdict, count, span, *exponents, ratio, edges or None])
        headers = ["where", "method", "verdict", "fitted on", "d", "alpha", "beta", "× MeZO", "best step at edge"]
        body += [
            subtitle(f"Conclusion {index + 1}", f"conclusion-{index + 1}"),
            paragraph(c.says),
            table(headers, rows, numeric=(8,)),
        ]
    return Section("What each conclusion rests on", body, anchor="conclusions")


def _explanations(analysed: Sequence[Analysed]) -> Section | None:
    """HELENE against MeZO, and which matched control does as well; None where no control was run."""
    rows = []
    for e in (a.explained for a in analysed if a.explained is not None):
        others = ", ".join(
            f"{TITLES.get(name, name)} {number(value)} [{number(low)}, {number(high)}]"
            for name, (value, low, high) in e.rivals.items()
        )
        home = f"{e.candidate.family.replace('_', ' ')}, {e.candidate.start}"
        acts, known = cells_where_h_acts(e.candidate.cells)
        reach = f"{acts} of {known} cells" if known else None
        rows.append([home, unbroken(e.candidate.label), spread(e.ratio), e.cause, others, reach])
    if not rows:
        return None
    text = (
        "A win is an interval of steps over tuned MeZO's that lies below 1. It is the curvature's only if the matched "
        "controls lose: heavy-ball MeZO, h replaced by its mean, h shuffled over coordinates, step sizes per layer, a "
        "growing step, Sophia's clip, each with the same number of trials. A control that needs at most 3 % more steps "
        "than the winner, within its interval, explains the win. Where h acts in no cell, the controls that change h "
        "tell nothing; Tuning says how that is known."
    )
    headers = ["where", "method", "× MeZO", "explained by", "steps of each control over the method's", "h acts in"]
    return Section("What explains a difference", [paragraph(text), table(headers, rows)], anchor="explanations")
