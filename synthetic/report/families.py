"""The sections of the families: a table of exponents and the figures of each start. Never imports torch."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from helene.lab.report.pages import Section, figure, paragraph, subtitle, table
from synthetic.analysis.results import FAMILIES
from synthetic.analysis.verdicts import Analysed
from synthetic.report.pictures import Pictures
from synthetic.report.words import STARTS, at, exponent, grows, shared, spread, unbroken

_HOW_TO_READ = (
    "The law is T ~ (max d_i)^alpha d^beta. The tables give both exponents with 95 % intervals, on the cells with "
    "d ≥ 64 where there are eight or more of them. × MeZO: steps over tuned MeZO's, geometric mean."
)


def family_sections(analysed: Sequence[Analysed], pictures: Pictures) -> list[Section]:
    """One section per family: a table of exponents and the figures of each start."""
    out: list[Section] = []
    for family in dict.fromkeys(a.series.family for a in analysed):
        body: list[Markup | str] = [paragraph(_HOW_TO_READ)] if not out else []
        for start in dict.fromkeys(a.series.start for a in analysed if a.series.family == family):
            rows = [a for a in analysed if at(a, family, start)]
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
        lines.append([link, grows(a), exponent(a.main, "d"), exponent(a.main, "max_d"), ratio, shared(a) or None])
    used = {(a.main.subset, a.main.law.num_cells, len(a.series.cells)) for a in rows if a.main.law is not None}
    subsets = " or ".join(
        f"all {most}" if subset == "all" else f"the {count} of {most} with {subset.replace('>=', '≥')}"
        for subset, count, most in sorted(used)
    )
    headers = ["method", "grows with d?", "exponent of d", "exponent of max d_i", "× MeZO", "runs"]
    if not any(a.series.borrowed for a in rows):
        headers, lines = headers[:-1], [line[:-1] for line in lines]
    return [paragraph(f"Cells: {subsets}."), table(headers, lines)]
