"""What docs/findings/language_models.md tells of all methods on masked tasks, against the committed records."""

from __future__ import annotations

from statistics import fmean

import pytest

from helene.lab.runs.records import read_jsonl
from llm_bench.report.cell_numbers import Numbers, numbers
from llm_bench.report.compare import lead
from tests.findings.committed import LLM, METHODS, accuracies, full_runs, share_above_floor, table, words

PAGE = "docs/findings/language_models.md"
TASKS = ("sst2", "trec", "rte")
LIKE_MEZO = ("zo-sgd-mmt", "zo-adam", "helene-backprop")
ROWS = {"linear-probe": "linear probing", **{method: METHODS[method] for method in ("mezo", *LIKE_MEZO)}}
ROWS |= {"bias-only": "one bias a class", "helene-corrected": METHODS["helene-corrected"], "helene": METHODS["helene"]}


def of(task: str, method: str) -> Numbers:
    runs = read_jsonl(LLM / "rows" / "all" / f"masked-{task}.jsonl")
    found = numbers([r for r in runs if (r.config["method"], r.config["role"]) == (method, "test")])
    assert found is not None
    return found


def test_the_table_of_masked_tasks():
    """Cells whose five seeds are there; the untrained model has one."""
    expected = []
    for method, label in ROWS.items():
        cells = (accuracies(f"all/masked-{task}", method) for task in TASKS)
        told = [f"{fmean(a):.3f} ({min(a):.3f}–{max(a):.3f})" if len(a) == 5 else "" for a in cells]
        expected.append([label, *told])
    expected.append(["untrained", *(f"{accuracies(f'all/masked-{task}', 'zero-shot')[0]:.3f}" for task in TASKS)])
    assert table(PAGE, "| test accuracy, mean (range) of five seeds")[1:] == expected


@pytest.mark.parametrize("task", ["sst2", "trec"])
def test_who_does_as_mezo(task: str):
    mezo, untrained = of(task, "mezo"), of(task, "zero-shot")
    assert not lead(mezo, of(task, "linear-probe")).sure, "as far as linear probing does"
    for method in LIKE_MEZO:
        assert not lead(of(task, method), mezo).sure
    for method in ("helene", "helene-corrected"):
        assert lead(mezo, of(task, method)).sure
        assert not lead(of(task, method), untrained, fixed=(False, True)).sure, "stays at the untrained model"


def test_what_h_by_backpropagation_costs_on_trec():
    runs = {method: full_runs("all/masked-trec", method, "test") for method in ("mezo", "helene-backprop")}
    (first, last), (low, high) = (
        (min(spent), max(spent)) for spent in ([r.result["target"]["forwards"] for r in some] for some in runs.values())
    )
    memory = of("trec", "helene-backprop").bytes / of("trec", "mezo").bytes
    told = f"takes MeZO {first:,} to {last:,} forwards, HELENE with h by backpropagation {low:,} to {high:,}"
    assert f"{told}, and {memory:.1f} times the memory" in words(PAGE)
    assert all(share_above_floor(run) < 1e-5 for run in runs["helene-backprop"])


def test_nobody_learns_rte():
    untrained = accuracies("all/masked-rte", "zero-shot")[0]
    assert all(
        fmean(accuracies("all/masked-rte", method)) <= untrained for method in ("mezo", "helene", "linear-probe")
    )


def test_the_earlier_head():
    """Other weights, so other fingerprints; the means that the page tells."""
    told, earlier = [], read_jsonl(LLM / "masked-first-head.jsonl")
    for task in ("sst2", "trec"):
        for method in ("mezo", "helene"):
            tests = [
                r for r in earlier if (r.config["task"], r.config["method"], r.config["role"]) == (task, method, "test")
            ]
            assert len(tests) == 5
            told.append(f"{fmean(r.result['test']['metric'] for r in tests):.3f}")
            assert not {r.key for r in tests} & {r.key for r in full_runs(f"all/masked-{task}", method, "test")}
    assert "MeZO and HELENE have {} and {} on SST-2, {} and {} on TREC".format(*told) in words(PAGE)
    mezo, helene = (
        numbers([r for r in earlier if (r.config["task"], r.config["method"], r.config["role"]) == ("sst2", m, "test")])
        for m in ("mezo", "helene")
    )
    assert mezo is not None
    assert helene is not None
    assert not lead(mezo, helene).sure, "MeZO's lead on SST-2 is within noise there"
