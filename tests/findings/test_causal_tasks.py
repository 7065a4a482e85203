"""What docs/findings/tasks.md tells of causal models, against the records."""

from __future__ import annotations

import math
from statistics import fmean

import pytest

from helene.lab.runs.records import Record, read_jsonl, write_jsonl
from llm_bench.protocol import speed
from llm_bench.report.cell_numbers import Numbers, numbers
from llm_bench.report.compare import lead
from llm_bench.runs.config import UNTRAINED
from llm_bench.tasks import get_task
from tests.findings.committed import LLM, accuracies, full_runs, share_above_floor, words
from tools import all_tasks, learned

PAGE = "docs/findings/tasks.md"


def of_method(task: str, method: str) -> Numbers:
    found = numbers(*(full_runs(f"all/causal-{task}", method, role) for role in ("test", "tune")))
    assert found is not None
    return found


def test_the_tables():
    page = all_tasks.PAGE.read_text(encoding="utf-8")
    assert page == all_tasks.placed(page), f"run: {all_tasks.COMMAND}"


def test_who_learns_and_who_does_as_mezo():
    rows = {row.task: row for row in all_tasks.of_kind(learned.rows(), "causal")}
    trained = [method for method in all_tasks.METHODS if method not in (*UNTRAINED, "ft-adam")]
    mezo = sorted(task for task, row in rows.items() if row.learned("mezo"))
    none = [task for task, row in rows.items() if not any(row.learned(m) for m in trained) and task != "WSC"]
    assert f"MeZO learns {' and '.join(mezo)}. No zeroth-order method learns WiC, COPA, RTE and BoolQ;" in words(PAGE)
    assert sorted(none) == ["BoolQ", "COPA", "RTE", "WiC"]
    for task in map(str.lower, rows):
        of_mezo, untrained = of_method(task, "mezo"), of_method(task, "zero-shot")
        if len(accuracies(f"all/causal-{task}", "helene-backprop")) > 1:
            assert not lead(of_method(task, "helene-backprop"), of_mezo).sure, "it does as MeZO"
        assert not lead(of_method(task, "helene"), untrained, fixed=(False, True)).sure, "stays at the untrained model"
    for task in ("wic", "wsc", "copa", "rte"):
        others = [m for m in all_tasks.METHODS if len(accuracies(f"all/causal-{task}", m)) > 1 and m != "mezo"]
        sure = {m for m in others if lead(of_method(task, m), of_method(task, "mezo")).sure}
        assert sure == ({"helene"} if task == "wsc" else set())
    untrained, bias = (of_method("wsc", method) for method in ("zero-shot", "bias-only"))
    for method in ("mezo", "zo-sgd-mmt", "zo-adam", "helene-backprop"):
        assert lead(of_method("wsc", method), untrained, fixed=(False, True)).sure
        assert lead(of_method("wsc", method), of_method("wsc", "helene")).sure
        assert not lead(of_method("wsc", method), bias, fixed=(False, True)).sure
    corrected = of_method("wsc", "helene-corrected")
    assert "h corrected for its bias is between MeZO and Algorithm 1, and differs from neither" in words(PAGE)
    assert of_method("wsc", "helene").mean < corrected.mean < of_method("wsc", "mezo").mean
    for other in ("mezo", "helene"):
        assert not lead(corrected, of_method("wsc", other)).sure
    for task in ("wic", "rte"):
        methods = [m for m in all_tasks.METHODS if len(accuracies(f"all/causal-{task}", m)) > 1]
        found = {m for m in methods if lead(of_method(task, m), of_method(task, "zero-shot"), fixed=(False, True)).sure}
        assert not found
    assert "nor above always the larger class (0.527)" in words(PAGE)
    others = [fmean(values) for method, values in rows["RTE"].results.items() if method != "ft-adam"]
    assert max(others) < 0.527 + 2 * rows["RTE"].error


def test_what_gradients_do():
    rows = {row.task: row for row in all_tasks.of_kind(learned.rows(), "causal")}
    assert [task for task in ("RTE", "WiC", "WSC", "COPA") if rows[task].learned("ft-adam")] == ["RTE", "WiC"]
    found = {task: {m: fmean(of) for m, of in rows[task].results.items() if m not in UNTRAINED} for task in rows}
    adam = [found[task].pop("ft-adam") for task in ("RTE", "WiC")]
    best = [max(found[task].values()) for task in ("RTE", "WiC")]
    told = "its test accuracies are {:.3f} and {:.3f}, the best means of zeroth-order methods {:.3f} and {:.3f}."
    assert told.format(*adam, *best) in words(PAGE)
    (one,), zo = accuracies("all/causal-copa", "ft-adam"), of_method("copa", "zo-adam").mean / 100
    assert (told := f"{one:.3f}") == f"{zo:.3f}"
    assert f"On COPA Adam's test accuracy is ZO-Adam's {told}." in words(PAGE)
    assert accuracies("all/causal-wsc", "ft-adam") == accuracies("all/causal-wsc", "zero-shot"), "it stays there"
    assert not any(full_runs("all/causal-boolq", "ft-adam", role) for role in ("tune", "test"))


def test_what_gradients_do_in_tuning():
    dev = {
        task: {
            m: [r.result["dev"]["metric"] for r in full_runs(f"all/causal-{task}", m, "tune")]
            for m in all_tasks.METHODS
            if m not in UNTRAINED
        }
        for task in ("cb", "wsc")
    }
    adam = {task: of.pop("ft-adam") for task, of in dev.items()}
    best = {task: max(map(max, of.values())) for task, of in dev.items()}
    told = "has {:.2f} on dev, those of this table's zeroth-order methods at most {:.2f}."
    assert told.format(max(adam["cb"]), best["cb"]) in words(PAGE)
    assert set(adam["wsc"]) == {0.5}
    told = "each of its five step sizes has 0.50 on dev at best, zeroth-order methods up to {:.2f}."
    assert told.format(best["wsc"]) in words(PAGE)
    assert len(adam["wsc"]) == 5
    loss = {
        m: min(r.result["dev"]["loss"] for r in full_runs("all/causal-squad", m, "tune")) for m in ("ft-adam", "mezo")
    }
    assert "On SQuAD Adam's dev loss is {ft-adam:.3f}, MeZO's {mezo:.3f}.".format_map(loss) in words(PAGE)


def test_the_setup():
    """Which prompts were cut, and how many runs shared a card."""
    rows = {row.task: f"all/causal-{row.task.lower()}" for row in all_tasks.of_kind(learned.rows(), "causal")}
    cut = {t: {r.result["method"]["share_cut"] for r in full_runs(path, "icl", "test")} for t, path in rows.items()}
    assert {task for task, shares in cut.items() if shares != {0.0}} == {"CB", "SQuAD", "BoolQ", "RTE"}
    assert "Prompts in context are cut to 2,048 tokens on CB, SQuAD, BoolQ and RTE." in words(PAGE)
    assert {get_task(task.lower(), "causal").max_length for task in rows} == {2048}
    for kind in ("causal", "masked"):
        runs = [run for path in LLM.glob(f"rows/all/{kind}-*.jsonl") for run in read_jsonl(path)]
        assert fmean(map(speed.had_the_card_alone, runs)) < 0.5, "most runs shared a card"


def test_standard_errors():
    """Of one run, at most over the methods; the page rounds to 0.001."""
    found = {}
    for row in all_tasks.of_kind(learned.rows(), "causal"):
        of_row = [max(math.sqrt(a * (1 - a) / row.number) for a in values) for values in row.results.values()]
        found[row.task] = f"{max(of_row):.3f}"
    shared = found.pop("BoolQ")
    assert (shared, found.pop("SQuAD")) == ("0.016", "0.016")
    told = (
        "0.016 on BoolQ and SQuAD (1,000 test rows), {WiC} on WiC, {RTE} on RTE, {WSC} on WSC, {COPA} on COPA and {CB}"
    )
    assert told.format(**found) in words(PAGE)


def test_cb():
    backprop, mezo, page = of_method("cb", "helene-backprop"), of_method("cb", "mezo"), words(PAGE)
    tie = lead(backprop, mezo)
    assert not tie.sure, "It ties on CB too"
    assert not lead(of_method("cb", "zo-sgd-mmt"), mezo).sure, "Momentum changes nothing beyond noise"
    assert not lead(of_method("cb", "zo-adam"), mezo).sure, "as ZO-Adam does"
    assert lead(mezo, of_method("cb", "helene")).sure
    told = f"differ by {tie.points / 100:.3f} ± {(tie.high - tie.low) / 200:.3f} (95 %). HELENE's memory is"
    assert f"h by backpropagation and of MeZO {told} {backprop.bytes / mezo.bytes:.1f} times MeZO's" in page
    assert max(r.result["dev"]["metric"] for r in full_runs("all/causal-cb", "helene", "tune")) == 0.36
    tests = {m: full_runs("all/causal-cb", m, "test") for m in ("mezo", "helene-backprop", "zo-adam")}
    spans = {m: [r.result["target"]["forwards"] for r in of] for m, of in tests.items()}
    least, most = min(spans["mezo"]), max(spans["mezo"])
    assert f"MeZO has 0.7 on dev after {least:,} to {most:,} forwards" in page
    least, most = min(spans["helene-backprop"]), max(spans["helene-backprop"])
    after = f"with h by backpropagation after {least:,} to {most:,}"
    assert f"{after}, ZO-Adam after {min(spans['zo-adam']):,} to {max(spans['zo-adam']):,}." in page
    assert all(share_above_floor(run) < 1e-4 for run in tests["helene-backprop"])
    tried = full_runs("all/causal-cb", "helene-corrected", "tune")
    assert f"has {max(r.result['dev']['metric'] for r in tried)} on dev in tuning, and never 0.7" in page
    assert all(math.isinf(r.result["target"]["steps"]) for r in full_runs("all/causal-cb", "helene-corrected", "test"))
    sizes = {r.config["lr"] for r in full_runs("all/causal-cb", "zo-adam", "tune")}
    assert (len(sizes), {max(sizes)}) == (7, {r.config["lr"] for r in tests["zo-adam"]})


def test_copa():
    page, spans = words(PAGE), []
    older = ", ".join(f"{a:.2f}" for a in accuracies("small/causal-copa", "mezo"))
    assert f"In float32 MeZO had {older} ([older runs]" in page
    for method in ("helene-backprop", "mezo", "zo-sgd-mmt", "zo-adam", "helene", "helene-corrected"):
        curves = [r.result["curve"]["dev_loss"] for r in full_runs("all/causal-copa", method, "test")]
        assert {f"{curve[0]:.2f}" for curve in curves} == {"2.78"}
        spans.append(f"{min(map(min, curves)):.2f} to {max(map(min, curves)):.2f} with")
    ours, mezo, momentum, adam, helene, corrected = spans
    told = f"lowest of each run is {ours} h by backpropagation, {mezo} MeZO, {momentum} momentum, {adam} ZO-Adam."
    assert f"{told} That of HELENE" in page
    assert (helene, corrected) == ("2.78 to 2.78 with",) * 2


def test_rte_and_boolq():
    page = words(PAGE)
    brief = [", ".join(f"{a:.3f}" for a in accuracies("brief/causal-rte", m)) for m in ("mezo", "helene")]
    assert "RTE has {} by MeZO and {} by HELENE".format(*brief) in page
    best = max(full_runs("all/causal-rte", "mezo", "tune"), key=lambda r: r.result["dev"]["metric"])
    assert (f"{best.result['dev']['metric']:.2f}", best.config["lr"]) == ("0.57", 1e-6)
    aucs = {row.task: row.aucs for row in all_tasks.of_kind(learned.rows(), "causal")}["BoolQ"]
    told = ", ".join(f"{auc:.3f}" for auc in aucs["mezo"])
    probe, untrained = (f"{auc:.3f}" for method in ("linear-probe", "zero-shot") for auc in aucs[method])
    assert f"at chance ({told}). Linear probing has an AUC of {probe}, the untrained model {untrained}." in page


def test_a_grid_without_a_finished_run_is_open_and_names_no_best(tmp_path, monkeypatch):
    def tuned(method, lr, model="m", **result):
        config = {"kind": "causal", "task": "rte", "tuning": "full", "role": "tune", "steps": 9}
        return Record.of("x", {**config, "method": method, "lr": lr, "model": model}, result)

    dev = {"metric": 0.5, "loss": 0.7}
    runs = [tuned("mezo", lr, status="non_finite") for lr in (1.0, 2.0)]
    runs += [tuned("helene", 1.0, status="error"), tuned("zo-adam", 1.0, status="out_of_budget", dev=dev)]
    (tmp_path / "all").mkdir()
    file = tmp_path / "all" / "causal-rte.jsonl"
    write_jsonl(file, runs, "test")
    monkeypatch.setattr(all_tasks, "ROWS", tmp_path)
    assert all_tasks.open_cells().splitlines()[2:] == [
        "| RTE | MeZO | 2 | none ended well |",
        "| RTE | ZO-Adam | 1 | 0.500 |",
    ]
    write_jsonl(file, [*runs, tuned("zo-adam", 2.0, "other", status="out_of_budget", dev=dev)], "test")
    with pytest.raises(ValueError, match="values of model, m and other"):
        all_tasks.open_cells()
