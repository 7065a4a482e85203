"""docs/findings/groups.md: SQuAD, whose target is a dev loss."""

from __future__ import annotations

import math

from helene.lab.runs.store import Record
from llm_bench.protocol import speed
from llm_bench.report.cell_numbers import least_peak
from tests.findings.committed import full_runs, table, words
from tests.findings.groups_rows import lr_of, scores


def steps_to_loss(run: Record, target: float) -> float:
    """The first look with that dev loss; runs whose answers are generated count to no target themselves."""
    curve = run.result["curve"]
    return next((s for s, loss in zip(curve["step"], curve["dev_loss"], strict=True) if loss <= target), math.inf)


def test_squad():
    """Two seeds of MeZO and 16 groups; what tuning says of the others."""
    page, text, found = "docs/findings/groups.md", words("docs/findings/groups.md"), {}
    rows = []
    for label, method in (("MeZO", "mezo"), ("16 groups", "mezo-grouped-16")):
        found[method] = tests = full_runs("groups/causal-squad", method, "test")
        assert [run.config["seed"] for run in tests] == [0, 1]
        tried = full_runs("groups/causal-squad", method, "tune")
        best = min(tried, key=lambda run: run.result["dev"]["loss"])
        assert (len(tried), best.config["lr"]) == (4, tests[0].config["lr"])
        rows.append(
            [
                label,
                lr_of(tests),
                ", ".join(f"{steps_to_loss(run, 0.8):.0f}" for run in tests),
                ", ".join(f"{min(run.result['curve']['dev_loss']):.3f}" for run in tests),
                scores(tests),
                f"{(least_peak([*tests, *tried]) or 0) / 1e9:.1f}",
            ]
        )
        assert not any(speed.had_the_card_alone(run) for run in tests)
    assert table(page, "| SQuAD, target 0.8 of dev loss")[1:] == rows
    steps = [[steps_to_loss(run, 0.8) for run in found[m]] for m in ("mezo-grouped-16", "mezo")]
    assert (
        "On [SQuAD](#squad) 16 groups take {} and {} steps where MeZO takes {} and {}.".format(*steps[0], *steps[1])
        in text
    )
    ratios = [a / b for a, b in zip(*steps, strict=True)]
    assert "Seed by seed 16 groups take {:.2f} and {:.2f} times MeZO's steps.".format(*ratios) in text
    (twice,) = (r for r in full_runs("groups/causal-squad", "mezo", "tune") if r.config["lr"] == 2e-6)
    told = f"has the target after {steps_to_loss(twice, 0.8)} steps in tuning, and ends at a higher loss"
    assert f"{told} ({twice.result['curve']['dev_loss'][-1]:.3f})." in text
    best = [
        min(full_runs("groups/causal-squad", m, "tune"), key=lambda r: r.result["dev"]["loss"])
        for m in ("zo-sgd-mmt", "zo-adam")
    ]
    told = "In tuning momentum's best run has the target after {} steps, ZO-Adam's after {}."
    assert told.format(*(steps_to_loss(run, 0.8) for run in best)) in text
    assert not any(full_runs("groups/causal-squad", m, "test") for m in ("zo-sgd-mmt", "zo-adam"))
