"""What docs/findings/tasks.md tells of the masked tasks, and of other trainings of the head."""

from __future__ import annotations

import pytest

from helene.lab.runs.records import read_jsonl
from helene.lab.runs.store import Record
from llm_bench.report.cell_numbers import Numbers, numbers
from llm_bench.report.compare import TASKS, lead
from tests.findings.committed import LLM, share_above_floor, table, words
from tools import learned
from tools.all_tasks import METHODS

PAGE = "docs/findings/tasks.md"
SHOWN = ("trec", "sst2", "sst5", "snli", "mnli", "rte")
LIKE_MEZO = ("zo-sgd-mmt", "zo-adam", "helene-backprop")
HEADS = {"first": "heads/first", "second": "heads/second", "third": "rows/all"}


def runs_of(task: str, method: str, head: str = "third", role: str = "test") -> list[Record]:
    path = LLM / HEADS[head] / f"masked-{task}.jsonl"
    runs = read_jsonl(path) if path.is_file() else []
    return [r for r in runs if (r.config["method"], r.config["role"]) == (method, role)]


def of(task: str, method: str, head: str = "third") -> Numbers:
    found = numbers(*(runs_of(task, method, head, role) for role in ("test", "tune")))
    assert found is not None
    return found


def shown(task: str, method: str, head: str) -> str:
    return learned.shown([r.result["test"]["metric"] for r in runs_of(task, method, head)])


def test_mezo_and_helene_are_whole_and_of_one_model():
    for method in ("mezo", "helene", "zo-sgd-mmt", "zo-adam", "helene-backprop", "helene-corrected", "ft-adam"):
        assert all(len(runs_of(task, method)) == 5 for task in SHOWN)
    (fingerprint,) = {r.config["fingerprint"].split("-")[-1] for t in SHOWN for r in runs_of(t, "mezo")}
    assert f"the model's fingerprint is {fingerprint}" in words(PAGE)


def test_what_is_beyond_noise():
    """Of methods with several seeds: who is above the untrained model, and who differs from MeZO."""
    above, other = set(), set()
    for task in SHOWN:
        mezo, untrained = of(task, "mezo"), of(task, "zero-shot")
        for method in (m for m in METHODS if m != "zero-shot"):
            if len(runs_of(task, method)) < 2:
                continue
            of_method = of(task, method)
            above |= {(task, method)} if lead(of_method, untrained, fixed=(False, True)).low > 0 else set()
            other |= {(task, method)} if lead(of_method, mezo).sure else set()
    assert above == {("trec", method) for method in ("mezo", *LIKE_MEZO, "ft-adam", "linear-probe", "bias-only")}
    assert other == {("trec", "helene"), ("trec", "helene-corrected"), ("trec", "bias-only")}
    told = "On TREC HELENE as it reads, HELENE with a corrected h and one bias a class differ from MeZO beyond noise."
    assert f"{told} No other method does, on any task." in words(PAGE)
    assert not lead(of("trec", "mezo"), of("trec", "linear-probe")).sure, "as far as linear probing"
    adam = lead(of("trec", "ft-adam"), of("trec", "mezo"))
    assert f"is {adam.points:.1f} points above MeZO's [−{-adam.low:.1f}, {adam.high:.1f}]." in words(PAGE)


def test_what_h_by_backpropagation_costs_on_trec():
    runs = {method: runs_of("trec", method) for method in ("mezo", "helene-backprop")}
    (first, last), (low, high) = (
        (min(spent), max(spent)) for spent in ([r.result["target"]["forwards"] for r in some] for some in runs.values())
    )
    memory = of("trec", "helene-backprop").bytes / of("trec", "mezo").bytes
    told = f"takes MeZO {first:,} to {last:,} forwards, HELENE with h by backpropagation {low:,} to {high:,}"
    assert f"{told}, and {memory:.1f} times the memory" in words(PAGE)
    assert all(share_above_floor(run) < 1e-5 for run in runs["helene-backprop"])


def test_other_heads():
    methods = ("mezo", "helene", "zero-shot")
    cells = [(task, head) for task in SHOWN for head in HEADS if all(runs_of(task, method, head) for method in methods)]
    expected = [[TASKS[task], head, *(shown(task, method, head) for method in methods)] for task, head in cells]
    assert table(PAGE, "| task | head | MeZO")[1:] == expected
    sure = {(task, head) for task, head in cells if lead(of(task, "mezo", head), of(task, "helene", head)).sure}
    assert sure == {("trec", "first"), ("trec", "second"), ("trec", "third"), ("sst2", "second")}


@pytest.mark.parametrize("task", ["sst2", "trec"])
def test_who_does_as_mezo_with_the_second_head(task: str):
    mezo = of(task, "mezo", "second")
    for method in LIKE_MEZO:
        assert not lead(of(task, method, "second"), mezo).sure


def test_two_more_heads_on_sst2():
    """MeZO's lead over HELENE and over a bias."""
    assert "MeZO leads HELENE beyond noise with the fourth, not with the fifth." in words(PAGE)
    for file, sure in (("rows/small/masked-sst2", True), ("heads/small-sst2", False)):
        tests = [r for r in read_jsonl(LLM / f"{file}.jsonl") if r.config["role"] == "test"]
        mezo, helene, bias = (
            numbers([r for r in tests if r.config["method"] == method]) for method in ("mezo", "helene", "bias-only")
        )
        assert mezo is not None
        assert helene is not None
        assert bias is not None
        assert (lead(mezo, helene).sure, lead(mezo, bias).sure) == (sure, False)


def test_heads_are_of_other_weights():
    prints = [{r.config["fingerprint"] for r in runs_of("sst2", "mezo", head)} for head in HEADS]
    assert len(set.union(*prints)) == len(prints)
