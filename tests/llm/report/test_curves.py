"""Curves, profiles and the figures of methods: which runs, tasks and methods they show."""

import json
import math
import re
from pathlib import Path

from handmade import judged, shown, table_of, tuned

import llm_bench
from helene import cli as helene_cli
from helene.lab.report.drawing import PALETTE
from helene.lab.report.method_colours import PLACES
from helene.lab.runs.store import Record, Store, read_jsonl
from llm_bench.protocol.execute import CellRecords
from llm_bench.protocol.plan import Cell
from llm_bench.report import figures

ROWS = Path(llm_bench.__file__).parent / "records" / "rows"


def test_each_tuning_has_curves_of_its_own():
    table = table_of(judged(0, 0.8), judged(0, 0.7, tuning="lora"))
    html = shown(figures.section(table))
    assert html.count("SST-2 (causal). Dev loss") == html.count("SST-2 (causal) (LoRA). Dev loss") == 1


def test_a_run_that_ended_before_its_second_look_is_named_and_hides_no_other():
    whole, lost = judged(0, 0.8), judged(1, 0.5)
    lost.result["curve"] = {name: column[:1] for name, column in lost.result["curve"].items()}
    text = shown(figures.section(table_of(whole, lost)))
    assert "Ended before a second look at dev, so not in the curves: MeZO on SST-2 (causal), seed 1." in text
    assert text.count("<svg") == 2
    alone = shown(figures.section(table_of(lost)))
    assert "No test run with two looks at dev is there yet." in alone


def test_profiles_compare_task_and_seed_pairs_and_a_miss_is_never_within_a_factor():
    records = [judged(0, 0.8, 100), judged(1, 0.8, math.inf)]
    records += [judged(0, 0.8, 300, method="helene"), judged(1, 0.8, 100, method="helene")]
    assert figures.profile(table_of(*records)) is not None
    assert figures.profile(table_of(*records[:2])) is None
    dead = Record.of("x", records[-1].config, {"status": "out_of_memory", "message": "m"})
    _, left_out = figures.profile(table_of(*records[:-1], dead))
    assert left_out == [], "a run that ended for want of memory is a miss, no run that lacks"
    missed = [judged(0, 0.8, math.inf), judged(0, 0.8, math.inf, method="helene")]
    assert figures.profile(table_of(*missed)) is None


def test_a_profile_leaves_out_who_lacks_a_task_and_one_run_without_draws_stands_for_all_seeds():
    records = [
        judged(seed, 0.8, 100, method=method, task=task)
        for method in ("mezo", "helene")
        for task in ("sst2", "cb")
        for seed in (0, 1)
    ]
    records += [judged(seed, 0.8, 100, method="zo-adam") for seed in (0, 1)]
    records += [judged(0, 0.9, 30, method="ft-adam", task=task) for task in ("sst2", "cb")]
    drawing, left_out = figures.profile(table_of(*records))
    assert left_out == ["ZO-Adam"]
    assert drawing.alt.endswith("for MeZO, HELENE, FT (Adam).")
    html = shown(figures.section(table_of(*records)))
    (caption,) = re.findall(r"Performance profile: [^<]*", html)
    assert caption.endswith("Left out, since runs of some task are not there: ZO-Adam.")
    assert "Tasks are left out" not in html, "methods, not tasks"


def test_a_method_has_one_colour_in_all_figures_of_a_page():
    """ZO-Adam lies between MeZO and Adam where it was run, and leaves them their colours where it was not."""
    records = [judged(0, 0.8, 100, method=m, task=t) for m in ("mezo", "helene", "ft-adam") for t in ("sst2", "cb")]
    table = table_of(*records, judged(0, 0.8, 100, method="zo-adam"))
    drawings = [figures.curves(table, ("causal", task, "full"), "step", "dev_loss") for task in ("sst2", "cb")]
    drawing, _ = figures.profile(table)
    of_adam = PALETTE[figures._colours(table)["ft-adam"]]
    assert [of_adam in each.svg for each in (*drawings, drawing)] == [True] * 3
    of_zo_adam = PALETTE[figures._colours(table)["zo-adam"]]
    assert [of_zo_adam in each.svg for each in (*drawings, drawing)] == [True, False, False]


def test_helene_has_its_colour_where_it_stands_alone():
    """The one that the scaling pages give it too."""
    table = table_of(judged(0, 0.8, method="helene", task="sst2"))
    drawn = figures.curves(table, ("causal", "sst2", "full"), "step", "dev_loss")
    assert [PALETTE[PLACES[name]] in drawn.svg for name in ("mezo", "helene")] == [False, True]


def test_tunings_of_a_method_share_its_colour_but_where_they_are_lines_of_one_figure():
    records = [judged(0, 0.8, 100, task=task, tuning=tuning) for task in ("sst2", "cb") for tuning in ("full", "lora")]
    table = table_of(*records)
    for tuning in ("full", "lora"):
        drawn = figures.curves(table, ("causal", "sst2", tuning), "step", "dev_loss")
        assert [PALETTE[0] in drawn.svg, PALETTE[1] in drawn.svg] == [True, False]
    drawing, _ = figures.profile(table)
    assert [PALETTE[0] in drawing.svg, PALETTE[2] in drawing.svg] == [True, True], "HELENE's is left free"


def test_figures_name_known_methods():
    from llm_bench.runs import methods

    for names in figures.FIGURES.values():
        assert all(name in methods.METHODS for name in names)
    assert figures.FIGURES.keys() == figures.TITLES.keys()


def test_a_figure_shows_the_tasks_of_its_own_methods_and_names_the_others():
    both = [judged(0, 0.8, method=method, task=task) for method in ("mezo", "zo-sgd-mmt") for task in ("sst2", "cb")]
    table = table_of(*both, judged(0, 0.9, method="helene-corrected"))
    part, left_out = figures.with_own_runs(table, "ablation")
    assert {cell.task for cell in part} == {"sst2"}
    assert len(part) == 3, "with what stands beside"
    assert left_out == ["CB (causal)"]
    html = shown(figures.section(part, left_out=left_out))
    assert "no method that this page is about has a test run: CB (causal)." in html
    for which in ("floor", "curves"):
        assert figures.with_own_runs(table, which) == (table, []), "none of its own yet, or at all"
    cell = Cell("causal", "cb", "helene-corrected", "full")
    tuning = {cell: (CellRecords(None, (), 3, 4, tuning=(tuned(1e-6, 0.7, 0.5),)), None)}
    assert figures.with_own_runs(table | tuning, "ablation")[1] == ["CB (causal)"]
    error = Record.of("x", judged(0, 0.6).config, {"status": "error", "message": "OSError: no weights"})
    failed = {cell: (CellRecords(None, (), 3, 3, failed=(error,)), None)}
    assert figures.with_own_runs(table | failed, "ablation") == (table | failed, []), "why it failed is told"


def test_a_figure_shows_every_task_that_was_asked_for(tmp_path):
    store = tmp_path / "rows.sqlite"
    with Store(store) as opened:
        opened.merge(ROWS / "all/causal-sst2.jsonl")
        for record in read_jsonl(ROWS / "all/causal-copa.jsonl"):
            if record.config["method"] not in figures.OWN["curvature"]:
                opened.put(record)
    words = ["llm", "figure", "curvature", "--preset", "all", "--draw-only", "--store", str(store), "--out"]
    words.append(str(tmp_path))
    for more, tasks in ([], {"sst2"}), (["--tasks", "sst2", "copa"], {"sst2", "copa"}):
        assert helene_cli.main([*words, *more]) == 0
        drawn = json.loads((tmp_path / "llm" / "figure-curvature-all.json").read_text())["cells"]
        assert {cell["task"] for cell in drawn} == tasks
        page = (tmp_path / "llm" / "figure-curvature-all.html").read_text()
        assert ("Tasks are left out" in page) != bool(more)


def test_bands_are_drawn_where_they_can_be_told_apart_and_the_axis_names_the_metric():
    def drawn(*methods, task="sst2"):
        table = table_of(*(judged(seed, 0.7 + seed / 10, method=m, task=task) for m in methods for seed in (0, 1)))
        return figures.curves(table, ("causal", task, "full"), "step", "dev_metric")

    bands = [drawn(*m).svg.count("0.16") for m in (("mezo", "zo-adam"), ("mezo", "helene", "zo-adam", "fzoo"))]
    assert bands == [2, 2]
    assert drawn("mezo").alt.startswith("dev accuracy")
    assert drawn("mezo", task="squad").alt.startswith("dev F1")
