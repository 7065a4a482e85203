"""What docs/findings/tasks.md tells of CB and COPA, and of cells without test runs, against the records."""

from __future__ import annotations

import math

from llm_bench.protocol.plan import choose
from llm_bench.report.cell_numbers import Numbers, numbers
from llm_bench.report.compare import TASKS, lead
from llm_bench.tasks import get_task
from tests.findings.committed import LLM, METHODS, accuracies, full_runs, share_above_floor, table, words

PAGE = "docs/findings/tasks.md"


def of_method(task: str, method: str) -> Numbers:
    found = numbers(full_runs(f"all/causal-{task}", method, "test"))
    assert found is not None
    return found


def test_cb():
    columns = ("linear-probe", "zo-adam", "helene-backprop", "mezo", "zo-sgd-mmt", "icl", "helene-corrected")
    columns += ("helene", "zero-shot", "bias-only")
    shown = [", ".join(f"{a:.3f}" for a in accuracies("all/causal-cb", method)) for method in columns]
    assert [shown] == table(PAGE, "| linear probing | ZO-Adam | HELENE, h by backpropagation")[1:]
    backprop, mezo, page = of_method("cb", "helene-backprop"), of_method("cb", "mezo"), words(PAGE)
    tie = lead(backprop, mezo)
    assert not tie.sure, "It ties on CB too"
    assert not lead(of_method("cb", "zo-sgd-mmt"), mezo).sure, "Momentum changes nothing beyond noise"
    assert not lead(of_method("cb", "zo-adam"), mezo).sure, "as ZO-Adam does"
    assert lead(mezo, of_method("cb", "helene")).sure
    told = f"{tie.points / 100:.3f} ± {(tie.high - tie.low) / 200:.3f} (95 %). HELENE's memory is"
    assert f"difference of their means is {told} {backprop.bytes / mezo.bytes:.1f} times MeZO's" in page
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
    columns = ("zo-sgd-mmt", "zo-adam", "helene-backprop", "mezo", "zero-shot", "helene", "icl")
    rows = [
        [runs, products, *(", ".join(f"{a:.2f}" for a in accuracies(f"{preset}/causal-copa", m)) for m in columns)]
        for runs, products, preset in (("new", "TF32", "all"), ("older", "float32", "small"))
    ]
    assert rows == table(PAGE, "| runs | products")[1:]
    for method in ("zo-sgd-mmt", "zo-adam", "helene-backprop", "helene"):
        assert not lead(of_method("copa", method), of_method("copa", "mezo")).sure
    page, spans = words(PAGE), []
    for method in ("helene-backprop", "mezo", "zo-sgd-mmt", "zo-adam", "helene"):
        curves = [r.result["curve"]["dev_loss"] for r in full_runs("all/causal-copa", method, "test")]
        assert {f"{curve[0]:.2f}" for curve in curves} == {"2.78"}
        spans.append(f"{min(map(min, curves)):.2f} to {max(map(min, curves)):.2f} with")
    ours, mezo, momentum, adam, helene = spans
    told = f"lowest of each run is {ours} h by backpropagation, {mezo} MeZO, {momentum} momentum, {adam} ZO-Adam."
    assert f"{told} HELENE's" in page
    assert helene == "2.78 to 2.78 with"


def test_cells_without_test_runs():
    """Every method of preset `all` that was tuned on a task and not tested."""
    tasks = {"cb": "CB", "copa": "COPA", "squad": "SQuAD", "wic": "WiC", "wsc": "WSC"}
    labels, found = {f"causal-{task}": label for task, label in tasks.items()}, []
    labels |= {f"masked-{task}": f"{TASKS[task]} (masked)" for task in ("sst2", "snli", "rte")}
    for path in (LLM / "rows" / "all").glob("*.jsonl"):
        for method, label in METHODS.items():
            tuning = full_runs(f"all/{path.stem}", method, "tune")
            if not tuning or full_runs(f"all/{path.stem}", method, "test"):
                continue
            kind, _, task = path.stem.partition("-")
            dev = next(r.result["dev"] for r in tuning if r.config["lr"] == choose(tuning).lr)
            best = f"loss {dev['loss']:.3f}" if get_task(task, kind).generates else f"{dev['metric']:.3f}"
            found.append([labels[path.stem], label, str(len(tuning)), best])
    assert sorted(found) == sorted(table(PAGE, "| task | method | step sizes tried | best on dev")[1:])
