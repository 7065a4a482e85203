"""The figures of the page on A-GNB. Never imports torch."""

from __future__ import annotations

from functools import partial

from helene.lab.report.figures import Drawing, Line, line_figure
from synthetic.estimators.analysis import Findings, of_group
from synthetic.estimators.predicted import num_effective, rank_correlation

NAMES = {
    "returned": "A-GNB as returned, B ĝ⊙ĝ",
    "squares": "mean of per-sample squares",
    "sampled": "GNB, sampled labels",
    "exact": "minibatch's own Gauss-Newton diagonal",
}


def drawings_of(findings: Findings) -> dict[str, tuple[Drawing, str]]:
    """Each figure by name, with its caption."""
    against_batch = partial(line_figure, xlabel="batch size B", xlog=True, ylog=True)
    out = {}
    rows = findings.populations
    base = next((r for r in of_group(rows, "optimum") if r.record.config["model"] == "transformer"), None)
    base = base or rows[0]
    batches = base.record.config["batches"]
    lines = [Line(title, batches, [base.at(n, "error", b) for b in batches]) for n, title in NAMES.items()]
    out["error"] = (
        against_batch(lines, ylabel="relative error", title=f"Error of the estimates: {base.name}"),
        "Root mean square error over coordinates and minibatches, over the norm of the true diagonal. GNB and A-GNB "
        "have one law at the optimum.",
    )
    same = [
        r
        for r in rows
        if r.group != "certain"
        and (r.record.config["model"], r.record.config["size"], r.record.config["rare"])
        == (base.record.config["model"], base.record.config["size"], base.record.config["rare"])
    ]
    out["mean"] = (
        against_batch(
            [
                Line(
                    f"distance {r.record.config['distance']:g}", batches, [r.at("returned", "mean", b) for b in batches]
                )
                for r in same
            ],
            ylabel="mean of B ĝ⊙ĝ / truth",
            title="The mean of what is returned",
            marks={"the Hessian": 1.0},
        ),
        f"{base.record.config['model']}: sums over coordinates. Away from the optimum the mean grows like B.",
    )
    out["law"] = (
        against_batch(
            [
                Line(r.name.removesuffix(", distance 0"), batches, r.record.result["law_distance"])
                for r in of_group(rows, "optimum")
                if r.record.config["model"] == "logistic" or r.record.config["rare"] is None
            ],
            ylabel="distance from v χ²₁",
            title="The law of what is returned, at the optimum",
        ),
        "Largest distance of the distribution functions. As it shrinks, the estimate tends to a random variable, not "
        "to the Hessian; rare classes take longer.",
    )
    if findings.forward.records:
        dims = [r.config["d"] for r in findings.forward.records]
        curves = []
        for name, title in (("rank", "from SPSA gradients"), ("rank_exact", "from exact minibatch gradients")):
            middle, low, high = zip(*findings.forward.median(name), strict=True)
            curves.append(Line(title, dims, middle, band=(low, high)))
        told = [
            rank_correlation(c["d"], c["decades"], num_effective(c["beta2"]))
            for c in (r.config for r in findings.forward.records)
        ]
        curves.append(Line("from SPSA gradients, predicted", dims, told, style="dashed"))
        out["rank"] = (
            line_figure(
                curves,
                xlabel="dimension d",
                ylabel="rank correlation with the true diagonal",
                title="Average of 1000 estimates, β₂ = 0.99",
                xlog=True,
            ),
            "Spearman's rank correlation of h with the true diagonal: medians of 10 runs, their 95 % intervals. "
            "Dashed: what `theory/proofs/curvature/curvature_from_forwards.md` predicts, to leading order in 1/d.",
        )
    return out
