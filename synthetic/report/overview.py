"""Every family at a glance, every conclusion, every difference explained. Never imports torch."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from helene.lab.report.pages import Section, number, paragraph, subtitle, table
from synthetic.analysis.results import FAMILIES, TITLES
from synthetic.analysis.tuning import cells_where_h_acts
from synthetic.analysis.verdicts import Analysed
from synthetic.report.answers import Conclusion
from synthetic.report.words import STARTS, at, exponent, fitted, grows, shared, spread, unbroken


def evidence_sections(analysed: Sequence[Analysed], concluded: Sequence[Conclusion]) -> list[Section]:
    """What each conclusion rests on, and what explains the differences from MeZO."""
    explained = _explanations(analysed)
    return [_conclusions(concluded), *([explained] if explained else [])]


def glance(analysed: Sequence[Analysed]) -> Section:
    """A row for each family and start: whether HELENE's steps grow with d, beside the two controls."""
    rows, notes = [], []
    for family, start in dict.fromkeys((a.series.family, a.series.start) for a in analysed):
        by_method = {a.series.method: a for a in reversed(analysed) if at(a, family, start) and not a.series.variant}
        helene, mezo, per_layer = (by_method.get(name) for name in ("helene", "mezo", "per_layer"))
        if mezo is None:
            continue
        where = Markup('<a href="evidence.html#{}-{}">{}</a>, {}').format(
            family, start, FAMILIES.get(family, family), STARTS.get(start, start).removeprefix("fixed ")
        )
        ratio = None if helene is None or helene.ratio is None else spread(helene.ratio)
        own = [None] * 3 if helene is None else [grows(helene), *(exponent(helene.main, n) for n in ("d", "max_d"))]
        rows.append([where, *own, _value(mezo, "d"), _value(per_layer, "max_d"), ratio])
        if runs := shared(helene or mezo):
            name = FAMILIES.get(family, family)
            notes.append(f"{name[0].upper()}{name[1:]}, {STARTS.get(start, start)}: {runs}.")
    text = (
        "The law is T ~ (max d_i)^alpha d^beta, with 95 % intervals. The paper's claim is an exponent of 0 for d "
        "and of 1 for max d_i. The two controls show what either looks like on these very cells: MeZO's steps follow "
        "d, and one direction per layer follows max d_i. Steps are tuned HELENE's over tuned MeZO's; a step of either "
        "takes two forwards."
    )
    headers = ["problems, start", "HELENE: grows with d?", "exponent of d", "exponent of max d_i", "MeZO: of d"]
    headers += ["one direction per layer: of max d_i", "steps / MeZO's"]
    body = [table(headers, rows), paragraph(text), *([paragraph(" ".join(notes))] if notes else [])]
    return Section("Does the number of steps grow with d?", body, anchor="glance")


def _value(a: Analysed | None, name: str) -> str:
    value = None if a is None else a.main.exponent(name)
    return "–" if value is None else spread(value).partition("\N{NO-BREAK SPACE}")[0]


def _conclusions(concluded: Sequence[Conclusion]) -> Section:
    """A block per conclusion: the sentence, then the series and cells that it was drawn from."""
    body: list[Markup | str] = [
        paragraph("Each conclusion with the cells that it rests on; the numbers lead to the runs themselves.")
    ]
    for index, c in enumerate(concluded):
        rows = []
        for a in c.rows:
            s = a.series
            edges = sum(cell.edge for cell in s.cells)
            where = f"{FAMILIES.get(s.family, s.family)}, {STARTS.get(s.start, s.start)}"
            cells = fitted(a)
            sizes = [cell.d for cell in cells]
            span = f"{min(sizes)} to {max(sizes)}" if min(sizes) < max(sizes) else f"{sizes[0]}"
            count = Markup('<a href="#cells-{}">{}</a>').format(s.lender, f"{len(cells)} of {len(s.cells)} cells")
            exponents = [exponent(a.main, name) for name in ("d", "max_d")]
            ratio = None if a.ratio is None else spread(a.ratio)
            rows.append([where, s.label, grows(a), count, span, *exponents, ratio, edges or None])
        headers = ["where", "method", "grows with d?", "fitted on", "d", "exponent of d", "exponent of max d_i"]
        headers += ["× MeZO", "best step at edge"]
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
        "A win is an interval of steps over tuned MeZO's that lies below 1. The curvature explains it only if the "
        "matched controls lose. They are heavy-ball MeZO, h replaced by its mean, h shuffled over coordinates, step "
        "sizes per layer, a growing step and Sophia's clip. Each has the same number of trials. A "
        "control that needs at most 3 % more steps than the winner, within its interval, explains the win. Where h "
        "acts in no cell, the controls that change h tell nothing; Tuning says how that is known."
    )
    headers = ["where", "method", "× MeZO", "explained by", "steps of each control over the method's", "h acts in"]
    return Section("What explains a difference", [paragraph(text), table(headers, rows)], anchor="explanations")
