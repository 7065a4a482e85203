"""The pages on language models and docs/choosing.md against the committed records."""

from __future__ import annotations

import math
import re
from statistics import fmean, median

from helene.lab.runs.records import Record, read_jsonl
from llm_bench.protocol import plan, speed
from llm_bench.protocol.presets import get_preset
from llm_bench.report import sensitivity
from llm_bench.report.page_tables import put_between_marks
from tests.findings.committed import LLM, ROOT, accuracies, full_runs, records, table, words
from tools import halving, learned

SST2, TASKS = "docs/findings/sst2.md", "docs/findings/tasks.md"


def test_the_page_on_language_models():
    """Its table and the README's line are those of the records; where another page lists seeds, they are these."""
    found = learned.rows()
    page = learned.PAGE.read_text(encoding="utf-8")
    assert page == learned.placed(page, found), f"run: {learned.COMMAND}"
    readme = learned.README.read_text(encoding="utf-8")
    assert learned.sentence(found) in readme, f"run: {learned.COMMAND}"
    assert learned.count(found) in readme, f"run: {learned.COMMAND}"
    by_mezo = sorted({row.task for row in found if row.learned("mezo")} - {"SST-2"})
    assert "MeZO learns {}, {} and {}; HELENE as Algorithm 1 reads learns none".format(*by_mezo) in words(TASKS)
    assert not any(row.learned("helene") for row in found)
    lost = [duel.task.split(", ") for duel in learned.fights(found) if duel.winner == "MeZO"]
    gemma, (masked,) = ([task for task, model in lost if model == of] for of in ("Gemma", "MiniLM-L6"))
    told = f"on {', '.join(gemma)} (Gemma) and {masked} (MiniLM-L6), of {len(learned.fights(found))} tasks"
    assert told in words("docs/findings/language_models.md")
    won = {row.task for row in found if row.kind == "causal" and row.learned("mezo")}
    assert f"On {' and '.join(task for task in gemma if task not in won)} neither learned." in words(
        "docs/findings/language_models.md"
    )
    listed = words(SST2) + words(TASKS)
    for file in (
        "small/causal-sst2",
        "parts/causal-sst2",
        "small/masked-sst2",
        "all/causal-sst2",
        "brief/causal-rte",
        "second-model/causal-sst2",
        "second-model/causal-rte",
    ):
        for method in ("mezo", "helene"):
            assert ", ".join(f"{value:.3f}" for value in accuracies(file, method)) in listed, (file, method)


def test_squads_dev_losses():
    """The lowest of each test run."""
    lowest = dict[str, list[str]]()
    runs = read_jsonl(LLM / "rows" / "all" / "causal-squad.jsonl")
    for run in sorted(runs, key=lambda run: run.config["seed"]):
        if "curve" in run.result and run.config["role"] == "test":
            lowest.setdefault(run.config["method"], []).append(f"{min(run.result['curve']['dev_loss']):.3f}")
    assert f"| lowest dev loss, seeds 0, 1, 2 | {', '.join(lowest['mezo'])} | {', '.join(lowest['helene'])} |" in words(
        TASKS
    )


def test_the_second_model():
    columns = ("linear-probe", "mezo", "zo-sgd-mmt", "zo-adam", "bias-only", "icl", "helene", "zero-shot")
    assert table(SST2, "| test accuracy | linear probing")[1:] == [
        [label, *(", ".join(f"{a:.3f}" for a in accuracies(f"second-model/causal-{task}", m)) for m in columns)]
        for label, task in (("SST-2", "sst2"), ("RTE", "rte"))
    ]
    means = [fmean(accuracies("second-model/causal-sst2", m)) for m in columns if m not in ("bias-only", "icl")]
    assert means == sorted(means, reverse=True)
    rows = read_jsonl(LLM / "rows/second-model/causal-sst2.jsonl")
    for method in ("mezo", "zo-sgd-mmt", "zo-adam", "helene"):
        runs = [r for r in rows if r.config["method"] == method]
        tried = {r.config["lr"] for r in runs if r.config["role"] == "tune"}
        assert len(tried) == 7
        assert {r.config["lr"] for r in runs if r.config["role"] == "test"} == {max(tried)}
    text = words(SST2)
    (squad,) = read_jsonl(LLM / "rows/second-model/causal-squad.jsonl")
    assert squad.config["method"] == "zero-shot"
    assert f"SQuAD has the untrained model alone, with an F1 of {squad.result['test']['metric']:.3f}." in text


TUNED = {  # methods of the table of tunings
    "mezo": "MeZO",
    "zo-sgd-mmt": "MeZO with momentum (ZO-SGD-MMT)",
    "zo-adam": "ZO-Adam",
    "zo-sgd-sign": "ZO-SGD-Sign",
    "forward-grad": "Forward-Grad, 2 forwards' worth a step",
    "zo-sgd-cons": "ZO-SGD-Cons, 5 forwards a step",
    "helene": "HELENE, Algorithm 1",
    "fo-sgd": "FO-SGD, by backpropagation, 8 examples a step",
}


def is_test_of(run: Record, method: str) -> bool:
    return (run.config["method"], run.config["role"]) == (method, "test")


def test_the_table_of_tunings():
    names = {"full": "all parameters", "lora": "LoRA, rank 8", "prefix": "a prefix of 5"}
    every = [r for path in sorted((LLM / "rows" / "table-3").glob("*.jsonl")) for r in read_jsonl(path)]
    found = [r for r in every if r.config["method"] == "mezo"]

    def cell(method: str, tuning: str) -> str:
        runs = [r for r in every if (r.config["method"], r.config["tuning"]) == (method, tuning)]
        tried = {r.config["lr"] for r in runs if r.config["role"] == "tune"}
        tests = sorted((r for r in runs if r.config["role"] == "test"), key=lambda r: r.config["seed"])
        tests = tests[: len(plan.test_seeds(get_preset("table-3"), plan.Cell("causal", "sst2", method, tuning)))]
        shown = ", ".join(f"{r.result['test']['metric']:.3f}" for r in tests)
        return shown + " †" * (tests[0].config["lr"] in (min(tried), max(tried)))

    assert table(SST2, "| test accuracy | all parameters")[1:] == [
        [label, *(cell(method, tuning) for tuning in names)] for method, label in TUNED.items()
    ]
    for method, label in TUNED.items():
        told = re.search(r"(\d) forwards", label)
        spent = {r.result["forwards"] / r.config["steps"] for r in every if is_test_of(r, method)}
        assert told is None or spent == {float(told[1])}, label
    rows = []
    for tuning, name in names.items():
        runs = [r for r in found if r.config["tuning"] == tuning and r.config["role"] != "measure"]
        ms = 1e3 * median(speed.steady_seconds(r.result) for r in runs)
        rows.append([name, str(len({r.config["lr"] for r in runs})), f"{ms:.1f}"])
    assert table(SST2, "| MeZO tunes")[1:] == rows
    tested = {r.config["tuning"]: r.config["lr"] for r in found if r.config["role"] == "test"}
    largest = max(r.config["lr"] for r in found if r.config["tuning"] == "prefix")
    assert (tested["lora"], tested["prefix"], largest) == (4e-4, 0.16, 0.16)
    for page in ("README.md", "docs/choosing.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        assert "did best with 4e-4" in text
        assert "with 0.16, the largest that was tried" in text


def test_who_leads_by_tuning():
    """Sorted by their means; what backpropagation has beside the linear probe."""
    page, leaders = words(SST2), {"mezo", "zo-sgd-mmt", "zo-sgd-cons", "forward-grad"}
    (probe,) = accuracies("table-3/causal-sst2", "linear-probe")
    for tuning, first in (("", leaders), ("-lora", leaders), ("-prefix", {"zo-adam", "zo-sgd-sign"})):
        means = {method: fmean(accuracies(f"table-3/causal-sst2{tuning}", method)) for method in TUNED}
        assert (means.pop("fo-sgd") > probe) == (tuning != "-prefix"), "passes it but with a prefix"
        ranked = sorted(means, key=lambda method: -means[method])
        assert set(ranked[: len(first)]) == first
        assert ranked[-1] == "helene"
        assert means[ranked[0]] < probe
    told = "MeZO, with momentum or without, ZO-SGD-Cons and Forward-Grad lead where all parameters or LoRA are tuned."
    assert f"{told} With a prefix ZO-Adam and signs lead. HELENE is last; with a prefix it ties with MeZO." in page
    assert "SGD by backpropagation passes it but with a prefix." in page
    for name, method in (("all/causal-sst2", "ft-adam"), ("table-3/causal-sst2", "fo-sgd")):
        assert len({tuple(r.result["curve"]["dev_loss"]) for r in full_runs(name, method, "test")}) == 1, "equal runs"


def test_the_table_of_step_sizes():
    """That of all committed rows."""
    page = (ROOT / "docs" / "findings" / "step_sizes.md").read_text(encoding="utf-8")
    table_now = sensitivity.table_of(sorted((LLM / "rows").glob("*/*.jsonl"), reverse=True))
    told = "run: helene llm sensitivity llm_bench/records/rows/*/*.jsonl --write docs/findings/step_sizes.md"
    assert page == put_between_marks(page, sensitivity.MARKS, table_now), told


def test_how_forgiving_step_sizes_are():
    methods = {row[0]: row[1:] for row in table("docs/findings/step_sizes.md", "| method | grids")[1:]}
    (grids, width, _, _, works), (of, alone, _, _, seldom) = methods["MeZO"], methods["HELENE"]
    told = f"works over a factor of {width}, HELENE at its best step size alone. MeZO's published 1e-6 works in {works}"
    assert f"{told} grids, HELENE's untuned step size in {seldom}." in words("docs/findings/step_sizes.md")
    assert f"MeZO works over a factor of {width} in the median" in words("docs/choosing.md")
    assert f"it [works](docs/findings/step_sizes.md) in {works} grids" in words("README.md")
    assert (alone, works.split()[-1], seldom.split()[-1]) == ("1", grids, of)


def test_what_the_papers_claims_come_to():
    """The table's numbers are those of the answers that the ledger links."""
    said = {line["claim"]: line["answer"] for line in records(LLM / "claims.jsonl")}
    rows = [row[1] for row in table("docs/findings/language_models.md", "| the paper says of HELENE")[1:]]
    mezo, helene = re.findall(r"in (\d) of (\d) seeds", said["SPEED-20x"])
    assert rows[0] == f"SST-2: MeZO reaches the target in {' of '.join(mezo)} seeds, HELENE in none"
    assert helene[0] == "0"
    tasks, points = re.findall(r"over (\d+) tasks with full tuning HELENE − MeZO is -([\d.]+) points", said["TAB-1.5"])[
        0
    ]
    assert rows[1] == f"−{points} points on average over {tasks} tasks, all parameters tuned"
    of, higher, sure, lost = re.findall(r"\d+", said["TAB-consistent"])
    assert rows[2] == f"the higher mean in {higher} of {of} pairs, beyond noise in none; MeZO beyond noise in {lost}"
    assert sure == "0"
    least, _, most = re.findall(r"([\d.]+) with \S+ state", said["MEM-3x"])
    assert rows[3] == f"{least} to {most} times on OPT-1.3B's shape, by how its state is stored"


def test_what_halving_would_choose():
    counts = halving.counts(halving.cells())
    (mezo, mezos), (helene, helenes) = counts["mezo"], counts["helene"]
    text = " ".join(learned.PAGE.read_text(encoding="utf-8").split())
    same, of_all = map(sum, zip(*counts.values(), strict=True))
    assert f"in {same} of {of_all} cells" in text
    others = f"in {same - mezo - helene} of {of_all - mezos - helenes} of other methods"
    assert f"in {mezo} of MeZO's {mezos}, in {helene} of HELENE's {helenes} and {others}" in text


def test_halving_goes_by_what_a_run_has_shown_so_far():
    """The second step size is behind at first and leads in the end, so halving drops it."""
    at = {"step": [0, 500, 2000], "dev_loss": [1.0, 0.5, 0.5]}
    curves = {1.0: {**at, "dev_metric": [0.5, 0.7, 0.7]}, 2.0: {**at, "dev_metric": [0.5, 0.6, 0.9]}}
    assert halving.ranked(curves, [1.0, 2.0]) == [2.0, 1.0]
    assert halving.ranked(curves, [1.0, 2.0], 500) == [1.0, 2.0]
    assert halving.counts([halving.Cell("t", "m", 2.0, 1.0), halving.Cell("u", "m", 1.0, 1.0)]) == {"m": (1, 2)}


def test_what_counts_as_learned():
    """Two standard errors above the better control; a method that was not run has no verdict."""
    row = learned.Row("masked", "t", "m", 9, "f", {"zero-shot": [0.5], "bias-only": [0.6, 0.7], "mezo": [0.74]}, 100)
    assert (row.error, row.learned("mezo"), row.learned("helene")) == (0.05, False, None)
    row.results["mezo"] = [0.7, 0.81]
    assert row.learned("mezo")
    chance = 0.5 + 2 * math.sqrt(1 / 300)  # of 100 rows, half of each kind
    for auc, learned_it in ((chance - 1e-6, False), (chance + 1e-6, True)):
        row.aucs["mezo"] = [auc, auc]
        assert row.learned("mezo") is learned_it


def test_which_products_records_are_of():
    """And which of its presets have another head than the masked rows of `all`."""
    products = {
        preset: {run.config["products"] for path in files for run in read_jsonl(path)}
        for preset in {row.preset for row in learned.rows()}
        if (files := sorted((LLM / "rows" / preset).glob("*.jsonl")))
    }
    assert {preset for preset, found in products.items() if found == {"float32"}} == {"small", "brief"}
    assert all(found == {"tf32"} for preset, found in products.items() if preset not in ("small", "brief"))
    text = words("docs/findings/language_models.md")
    assert "The records `small` and `brief` are of float32 products, the others of TF32." in text
