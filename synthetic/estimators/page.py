"""The page on A-GNB, and its summary. Never imports torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from helene.lab.report.figures import Drawing
from helene.lab.report.index_page import write_index
from helene.lab.report.page_footer import measured_on
from helene.lab.report.pages import (
    Section,
    badge,
    figure,
    interval,
    paragraph,
    render_page,
    table,
    two_places,
    write_report_text,
)
from helene.lab.runs import canonical
from helene.lab.runs.records import Record
from synthetic.estimators.analysis import ASYMPTOTIC_FROM, Exponent, Findings, MeasuredPopulation, findings_of
from synthetic.estimators.drawings import NAMES, drawings_of
from synthetic.report.related import refresh

TITLE = "What A-GNB estimates"


def write_page(out: Path, records: Iterable[Record], command: str, provenance: Mapping[str, Any]) -> tuple[str, bool]:
    """Write ``out/scaling/agnb.html``, ``agnb.json`` and the figures.

    Returns:
        The answer, and whether the instrument is sound and no cell failed.

    Raises:
        ValueError: If nothing was measured or a file cannot be written.
    """
    every = list(records)
    findings, failed = findings_of(every), [r for r in every if r.failed]
    folder, drawings = Path(out) / "scaling", drawings_of(findings)
    for name, (drawing, _) in drawings.items():
        drawing.save(folder / "figures", f"agnb-{name}")
    page = render_page(
        title=TITLE,
        answer=findings.answer,
        lead=[paragraph(Markup("{} ").format(badge(findings.verdict)) + _QUOTE), *_shown(drawings, "error")],
        sections=_sections(findings, drawings, len(failed)),
        command=command,
        provenance=provenance,
        downloads=[("JSON", "agnb.json")],
        measured=measured_on(every),
    )
    write_report_text(folder / "agnb.html", page)
    write_report_text(folder / "agnb.json", canonical.dumps(summary(findings, command, provenance), indent=1) + "\n")
    refresh(folder)
    write_index(out)
    return findings.answer, findings.verdict != "broken_instrument" and not failed


_QUOTE = "“As the batch size B → ∞, the A-GNB estimator converges to the true Hessian's diagonal” (section 3.4)."


def summary(findings: Findings, command: str, provenance: Mapping[str, Any]) -> dict[str, Any]:
    """What the page says, as data."""
    return {
        "title": TITLE,
        "answer": findings.answer,
        "verdict": findings.verdict,
        "command": command,
        "populations": [
            {
                "key": row.record.key,
                "name": row.name,
                "group": row.group,
                "error_exponents": {name: _plain(e) for name, e in row.error.items()},
                "tendencies": {name: e.tendency for name, e in row.error.items()},
                "mean_exponent": _plain(row.mean),
                "sd_true_over_sampled_labels": list(row.spread),
                "bias_of_squares": row.at("squares", "bias", ASYMPTOTIC_FROM),
                "law_distance": row.record.result["law_distance"],
            }
            for row in findings.populations
        ],
        "forward_only": {
            "d": [r.config["d"] for r in findings.forward.records],
            "snr": [list(x) for x in findings.forward.median("snr")],
            "rank": [list(x) for x in findings.forward.median("rank")],
            "rank_exact": [list(x) for x in findings.forward.median("rank_exact")],
            "snr_exponent": None if findings.forward.snr is None else _plain(findings.forward.snr),
        },
        "provenance": dict(provenance),
    }


def _plain(e: Exponent) -> list[float]:
    return [e.value, e.low, e.high]


def _sections(findings: Findings, drawings: Mapping[str, tuple[Drawing, str]], failed: int) -> list[Section]:
    rows = findings.populations
    sections = [
        Section("What theory says", [paragraph(text) for text in _THEORY]),
        Section("How the error goes with B", [paragraph(_READING), _exponent_table(rows)]),
        Section("Mean and law of what is returned", [*_shown(drawings, "mean", "law"), _law_table(rows)]),
        Section("True or sampled labels, and rare classes", [paragraph(_LABELS), _label_table(rows)]),
        Section("From losses alone", [*_shown(drawings, "rank"), *_forward_section(findings)]),
        Section("How it was measured", [paragraph(text) for text in _METHOD]),
    ]
    if failed:
        sections.append(Section("Failed cells", [paragraph(f"{failed} cells failed and are left out.")]))
    return sections


_THEORY = (
    "Let μ and v be mean and variance of one sample's gradient in a coordinate. Then E[B ĝ²] = v + Bμ². So away from "
    "a stationary point the mean grows like B. Where μ = 0, B ĝ² tends in law to v χ²₁, a random variable of standard "
    "deviation √2 v, for every batch. There v is the Hessian's entry if the labels follow the model.",
    "The mean of per-sample squares tends to E g², which is the Hessian's entry where the labels follow the model, "
    "with an error like B^−½. With SPSA gradients E h_j = B(|g|² + 2g_j²): every coordinate gets the trace. The claims "
    "GNB-returned, GNB-optimum, GNB-limit, GNB-variance and GNB-zo of `pytest theory/` prove these.",
)
_READING = (
    f"The table has exponents in B of the relative error, fitted from B = {ASYMPTOTIC_FROM} to 4096. The error is the "
    "root mean square over coordinates and minibatches. 95 % intervals of all are in agnb.json. As returned: B ĝ⊙ĝ at "
    "the true labels. Squares: the mean of per-sample squares. Sampled: GNB, B ĝ⊙ĝ at labels drawn from the model. Own "
    "diagonal: the minibatch's Gauss-Newton diagonal, labels summed over. An error whose exponent lies below −¼ "
    "shrinks, above ¼ it grows, in between it stays. The rate of a mean of B terms is −½. Bias: of the "
    "per-sample squares as B → ∞, relative, exact."
)
_LABELS = (
    "The first number is the standard deviation over minibatches of B ĝ⊙ĝ at true labels, over that at labels drawn "
    "from the model, at B = 64. Below 1, true labels vary less. The share of estimates within a factor 2 of the truth "
    "is for single estimates of single coordinates; of v χ²₁ it would be 0.32."
)
_METHOD = (
    "Each population has 32 to 64 inputs; labels follow the model at its optimum (the teacher), or are the teacher's "
    "likeliest class. The truth is the diagonal of the Hessian of the expected loss by torch.func in float64, at up to "
    "64 coordinates. All gradients by input and label are tabulated. Minibatches are multinomial counts over that "
    "table, 1000 for each B in 10 groups. The bootstrap goes over the groups.",
    "Distance: root mean square change of the logits from the optimum along a random direction, to first order. Rare "
    "classes: one bias is moved until all classes but one have that probability together. Drawn sums are compared "
    "with exact ones; more than 6 standard errors apart is a broken instrument.",
    "From losses alone: a logistic model at its optimum, 256 inputs, feature scales so that curvatures span three "
    "decades, B = 64. Each estimate has a fresh minibatch and direction. The average is exponential, β₂ = 0.99, over "
    "1000 estimates at a point that stands still.",
)


def _exponent_table(rows: Sequence[MeasuredPopulation]) -> Markup:
    body = [
        [
            row.name,
            _with_interval(row.error["returned"]),
            *(two_places(row.error[n].value) for n in list(NAMES)[1:]),
            {"converges": "shrinks", "stays": "stays", "grows": "grows", "unclear": "unclear"}[
                row.error["returned"].tendency
            ],
            f"{100 * row.at('squares', 'bias', ASYMPTOTIC_FROM):.0f} %",
        ]
        for row in rows
    ]
    headers = ["population", "as returned", "squares", "sampled", "own diagonal", "as returned, it", "bias of squares"]
    return table(headers, body, anchors=[f"cell-{row.record.key[:12]}" for row in rows])


def _with_interval(e: Exponent) -> str:
    return f"{two_places(e.value)} {interval(e.low, e.high)}"


def _law_table(rows: Sequence[MeasuredPopulation]) -> Markup:
    last = rows[0].record.config["batches"][-1]
    body = [
        [
            row.name,
            _with_interval(row.mean),
            row.at("returned", "mean", last),
            *(row.record.result["law_distance"][i] for i in (0, 3, -1)),
        ]
        for row in rows
    ]
    headers = ["population", "exponent of the mean", f"mean / truth at B = {last}", "law: B = 1", "64", f"{last}"]
    caption = (
        "The law of B ĝ² against v χ'²₁(Bμ²/v), v χ²₁ at the optimum: largest distance of the distribution functions, "
        "all coordinates together."
    )
    return table(headers, body, caption=caption)


def _label_table(rows: Sequence[MeasuredPopulation]) -> Markup:
    body = [
        [
            row.name,
            f"{row.spread[0]:.2f} {interval(*row.spread[1:])}",
            *(row.at("returned", "sd", b) for b in (1, 64, 4096)),
            row.at("returned", "within_2", 4096),
        ]
        for row in rows
    ]
    headers = ["population", "sd, true / sampled labels", "relative sd: B = 1", "64", "4096", "within a factor 2, 4096"]
    return table(headers, body)


def _forward_section(findings: Findings) -> list[Markup]:
    forward = findings.forward
    columns = [forward.median(name) for name in ("snr", "rank", "rank_exact")]
    body = [
        [r.config["d"], *(f"{c[i][0]:.3f} {interval(*c[i][1:])}" for c in columns)]
        for i, r in enumerate(forward.records)
    ]
    sentence = "The signal to noise of one estimate is below what these draws resolve at too many d for an exponent."
    if forward.snr is not None:
        e, dims = forward.snr, ", ".join(map(str, forward.fitted))
        sentence = (
            f"The signal to noise of one estimate goes as d^{e.value:.2f}, interval {interval(e.low, e.high)}. It is "
            f"fitted on d = {dims}: all from 64 on where every group is above zero. Theory gives d^−½ for the contrast "
            "over all coordinates, 1/d for two single ones."
        ).replace("^-", "^−")
    headers = ["d", "signal to noise, one estimate", "rank correlation, SPSA", "rank correlation, exact gradients"]
    return [paragraph(sentence), table(headers, body)]


def _shown(drawings: Mapping[str, tuple[Drawing, str]], *names: str) -> list[Markup]:
    return [figure(*drawings[name]) for name in names if name in drawings]
