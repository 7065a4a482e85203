"""What docs/findings/language_models.md tells of all methods on masked tasks with a second head."""

from __future__ import annotations

from statistics import fmean

import pytest

from helene.lab.runs.records import read_jsonl
from helene.lab.runs.store import Record
from llm_bench.report.cell_numbers import Numbers, numbers
from llm_bench.report.compare import lead
from tests.findings.committed import LLM, METHODS, accuracies, full_runs, share_above_floor, table, words

PAGE = "docs/findings/language_models.md"
TASKS = ("sst2", "trec", "rte")
LIKE_MEZO = ("zo-sgd-mmt", "zo-adam", "helene-backprop")
ROWS = {"linear-probe": "linear probing", **{method: METHODS[method] for method in ("mezo", *LIKE_MEZO)}}
ROWS |= {"bias-only": "one bias a class", "helene-corrected": METHODS["helene-corrected"], "helene": METHODS["helene"]}
ROWS |= {"zero-shot": "untrained"}


def runs_of(task: str, method: str) -> list[Record]:
    runs = read_jsonl(LLM / "second-head" / f"masked-{task}.jsonl")
    return [r for r in runs if (r.config["method"], r.config["role"]) == (method, "test")]


def of(task: str, method: str) -> Numbers:
    found = numbers(runs_of(task, method))
    assert found is not None
    return found


def shown(task: str, method: str) -> str:
    """Empty where seeds are missing; the untrained model has one."""
    found = [r.result["test"]["metric"] for r in runs_of(task, method)]
    if method == "zero-shot":
        return f"{found[0]:.3f}"
    return f"{fmean(found):.3f} ({min(found):.3f}–{max(found):.3f})" if len(found) == 5 else ""


def test_the_table():
    expected = [[label, *(shown(task, method) for task in TASKS)] for method, label in ROWS.items()]
    assert table(PAGE, "| test accuracy, mean (range) of five seeds")[1:] == expected


@pytest.mark.parametrize("task", ["sst2", "trec"])
def test_who_does_as_mezo(task: str):
    mezo, untrained = of(task, "mezo"), of(task, "zero-shot")
    assert not lead(mezo, of(task, "linear-probe")).sure, "as well as linear probing"
    for method in LIKE_MEZO:
        assert not lead(of(task, method), mezo).sure
    for method in ("helene", "helene-corrected"):
        assert lead(mezo, of(task, method)).sure
        assert not lead(of(task, method), untrained, fixed=(False, True)).sure, "stays at the untrained model"


def test_what_h_by_backpropagation_costs_on_trec():
    runs = {method: runs_of("trec", method) for method in ("mezo", "helene-backprop")}
    (first, last), (low, high) = (
        (min(spent), max(spent)) for spent in ([r.result["target"]["forwards"] for r in some] for some in runs.values())
    )
    memory = of("trec", "helene-backprop").bytes / of("trec", "mezo").bytes
    told = f"takes MeZO {first:,} to {last:,} forwards, HELENE with h by backpropagation {low:,} to {high:,}"
    assert f"{told}, and {memory:.1f} times the memory" in words(PAGE)
    assert all(share_above_floor(run) < 1e-5 for run in runs["helene-backprop"])


def test_nobody_learns_rte():
    untrained = of("rte", "zero-shot").mean
    assert all(of("rte", method).mean <= untrained for method in ("mezo", "helene", "linear-probe"))


def test_sst2_with_the_first_head():
    """Other weights, so other fingerprints: no row is of both."""
    told, first = [], []
    for method in ("mezo", "helene"):
        found = numbers(full_runs("all/masked-sst2", method, "test"))
        assert found is not None
        first.append(found)
        told.append(f"{fmean(accuracies('all/masked-sst2', method)):.3f}")
        heads = [
            {r.config["fingerprint"] for r in runs}
            for runs in (full_runs("all/masked-sst2", method, "test"), runs_of("sst2", method))
        ]
        assert not heads[0] & heads[1]
    assert "With the first one, {} against {}, it is not.".format(*told) in words(PAGE)
    assert not lead(*first).sure
