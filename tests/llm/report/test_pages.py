"""Tables, figures and pages, of records made by hand and of the committed ones."""

import dataclasses
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from handmade import MEZO, SMALL, judged, shown, table_of, tuned
from scipy import stats

import llm_bench
from helene import cli as helene_cli
from helene.lab.runs.records import write_jsonl
from helene.lab.runs.store import Record, Store, StoreError, read_jsonl
from llm_bench.cli import actions, committed_pages
from llm_bench.protocol.execute import Bench, CellRecords
from llm_bench.protocol.paper_tables import TABLES
from llm_bench.protocol.plan import Cell, choose
from llm_bench.report import changes, details, figures, ranked, tables, writing
from llm_bench.report.cell_numbers import numbers
from llm_bench.report.compare import lead
from tools import learned

BENCH = Bench(SMALL, {"causal": "gemma"}, None)
ROWS = Path(llm_bench.__file__).parent / "records" / "rows"


def test_the_first_line_names_both_with_numbers_and_a_lead_within_its_interval_is_none():
    """Two seeds each: 50 and 52 against 80 and 84 is a lead; against 40 and 64 it is none."""
    helene = [judged(0, 0.50, method="helene"), judged(1, 0.52, method="helene")]
    mezo = [judged(0, 0.80), judged(1, 0.84)]
    control = judged(0, 0.77, method="bias-only")
    said = tables.answer(table_of(*helene, *mezo, control))
    assert said.startswith("On SST-2 (causal) HELENE reaches 51.0 % and MeZO 82.0 %: MeZO leads by 31.0 points.")
    assert said.endswith("Neither beats the best control beyond noise.")
    lower = judged(0, 0.45, method="bias-only")
    said = tables.answer(table_of(*helene, *mezo, lower))
    assert said.endswith("MeZO beats it on SST-2 (causal), HELENE beats it on none.")
    unsure = tables.answer(table_of(*helene, judged(0, 0.40), judged(1, 0.64)))
    assert unsure == "On SST-2 (causal) HELENE reaches 51.0 % and MeZO 52.0 %: neither leads beyond noise."
    assert "not both been tested" in tables.answer(table_of(*mezo))
    single = [judged(0, 0.51, method="helene", task="cb"), *(judged(i, 0.6, task="cb") for i in (0, 1))]
    assert tables.answer(table_of(*single)).startswith(
        "On CB (causal) HELENE reaches 51.0 % and MeZO 60.0 %: one seed of a method decides nothing."
    )
    assert "CB" not in tables.answer(table_of(*single, *helene, *mezo))
    other = [judged(i, 0.6 + i / 100, method=m, task="rte") for m in ("helene", "mezo") for i in (0, 1)]
    two = tables.answer(table_of(*helene, *mezo, *other))
    first, second, third, *_ = two.split(". ")
    assert first == "HELENE beats MeZO on none of 2 tasks, MeZO beats HELENE on 1"
    assert second == "On the other one neither leads beyond noise"
    assert third.startswith("On SST-2 (causal) HELENE reaches 51.0 %")
    assert "RTE" not in two, "no lead, so it is said beside its table alone"


def test_a_comparison_answers_its_own_question():
    """Two seeds each: 80 and 84 against 50 and 52 is beyond noise, 40 and 64 is not."""
    helene = [judged(0, 0.50, method="helene"), judged(1, 0.52, method="helene")]
    mezo = [judged(0, 0.80), judged(1, 0.84)]
    better = [judged(0, 0.80, method="helene-no-curvature"), judged(1, 0.84, method="helene-no-curvature")]
    unsure = [judged(0, 0.40, method="helene-no-anneal"), judged(1, 0.64, method="helene-no-anneal")]
    one = changes.answer(table_of(*helene, *mezo, *better, *unsure), "ablation")
    said = "On SST-2 (causal) 1 of 2 changed parts raises HELENE's 51.0 % beyond noise: h = 0 (floor alone) 82.0 %."
    assert one == f"{said} MeZO reaches 82.0 %."
    none = changes.answer(table_of(*helene, *unsure), "ablation")
    assert none.startswith("On SST-2 (causal) none of 1 changed parts raises HELENE's 51.0 % beyond noise.")
    assert none.endswith("HELENE without anneal, reaches 52.0 %.")
    rivals = changes.answer(table_of(*helene, *mezo), "optimizers")
    assert rivals == "On SST-2 (causal) MeZO reaches 82.0 %, HELENE 51.0 %."
    assert "not both been tested" in changes.answer(table_of(*mezo), "ablation")
    grouped = changes.answer(table_of(*mezo, judged(0, 0.83, method="mezo-grouped-16")), "groups")
    assert grouped == "On SST-2 (causal) Grouped MeZO, 16 groups reaches 83.0 % in one run, MeZO 82.0 %."


def test_a_lead_counts_seeds_and_test_rows_and_needs_two_seeds():
    """Against the closed form: Welch with equal spreads has 2 (n - 1) degrees of freedom; 100 test rows add theirs."""
    one, other = numbers([judged(i, m) for i, m in enumerate((0.9, 0.92))]), numbers([judged(0, 0.5), judged(1, 0.52)])
    found = lead(one, other)
    seeds, sampling = 2 * 1.0, (91 * 9 + 51 * 49) / 100
    total = seeds + sampling
    freedom = total**2 / 2.0
    half = max(stats.t.ppf(0.975, 2) * math.sqrt(seeds), stats.t.ppf(0.975, freedom) * math.sqrt(total))
    assert found.points == pytest.approx(40.0)
    assert (found.low, found.high) == pytest.approx((40.0 - half, 40.0 + half))
    assert found.sure
    alone = numbers([judged(0, 0.9)])
    assert not lead(alone, other).sure
    assert lead(alone, other, fixed=(True, False)).sure


def test_seconds_of_steps_without_the_engine_are_told_apart():
    captured, plain = judged(0, 0.8), judged(0, 0.7, method="helene-backprop")
    captured.config["engine"] = True
    assert "Steps without the engine: HELENE, h by backward (Algorithm 2)." in shown(
        tables.costs_section(table_of(captured, plain))
    )
    assert "without the engine" not in shown(tables.costs_section(table_of(captured)))
    assert "without the engine" not in shown(tables.costs_section(table_of(plain)))


def test_prompts_that_were_cut_are_told():
    long = judged(0, 0.5, method="icl", task="rte")
    long.result["method"] = {"share_cut": 0.25}
    assert "rte (causal), ICL, 32 demonstrations: 25 % of the prompts" in shown(tables.facts_section(table_of(long)))
    long.result["method"] = {"share_cut": 0.0}
    assert "prompts" not in shown(tables.facts_section(table_of(long)))


def test_a_cell_under_way_shows_what_was_tried_and_that_no_test_run_is_there():
    grid = tuned(1e-6, 0.7, 0.5), tuned(3e-6, 0.6, 0.6)
    table = {MEZO: (CellRecords(None, (), 3, 4, tuning=grid), None)}
    html = shown(tables.table_section(BENCH, table, TABLES["2"]))
    assert f'href="#{tables.anchor(MEZO)}">not tested yet' in html
    under_way = shown(details.cells_section(table))
    assert f'id="{tables.anchor(MEZO)}"' in under_way
    assert "2 step sizes" in under_way
    assert "No test run is there yet." in under_way
    failed = table_of(judged(0, 0.8))
    for record in failed[MEZO][0].tests:
        record.result.update(status="out_of_memory", test=None, curve=None)
    assert "out of memory" in shown(details.cells_section(failed))
    of_failed = {MEZO: (failed[MEZO][0], None)}
    assert "every seed ended without a test metric (out of memory)</a>" in shown(
        tables.table_section(BENCH, of_failed, TABLES["2"])
    )
    hopeless = {MEZO: (CellRecords(choose(grid), (), 3, 0, tuning=grid), None)}
    assert ">no step size ended well</a>" in shown(tables.table_section(BENCH, hopeless, TABLES["2"]))
    of_another = table_of(judged(0, 0.8, task="copa"))
    assert "Not drawn, for no test run looked at dev twice: MeZO on sst2 (causal)." in shown(
        figures.section(table | of_another)
    )


def test_each_tuning_has_curves_of_its_own():
    table = table_of(judged(0, 0.8), judged(0, 0.7, tuning="lora"))
    html = shown(figures.section(table))
    assert html.count("SST-2 (causal). Dev loss") == html.count("SST-2 (causal) (LoRA). Dev loss") == 1


def test_the_page_shows_both_numbers_links_and_what_was_not_run(tmp_path):
    records = [judged(0, 0.8), judged(1, 0.84), judged(0, 0.77, method="bias-only")]
    table = table_of(*records)
    paper = TABLES["2"]
    html = shown(tables.table_section(BENCH, table, paper))
    assert "89.6" in html
    assert f'href="#{tables.anchor(MEZO)}"' in html
    assert html.count("not run") == len(paper.rows) - 2
    assert html.startswith("<details>")
    assert "gemma" in html
    cells_html = shown(details.cells_section(table))
    assert "method = &#34;mezo&#34;" in cells_html
    assert f'id="{tables.anchor(MEZO)}"' in cells_html
    costs = shown(tables.costs_section(table))
    assert "200" in costs
    sections = [*ranked.ranked_sections(table), tables.table_section(BENCH, table, paper), figures.section(table)]
    sections.append(details.cells_section(table))
    path = writing.write(tmp_path, "table-2", title="t", table=table, sections=sections, command="helene llm")
    page = path.read_text()
    assert page.count("<svg") >= 2
    assert json.loads((tmp_path / "llm/summary.json").read_text())["cells"]
    links, addresses = re.findall(r'href="#([^"]+)"', page), re.findall(r'\bid="([^"]+)"', page)
    assert set(links) <= set(addresses)
    downloads = re.findall(r'href="(table-2[^"#]+)"', page)
    assert downloads
    assert all((tmp_path / "llm" / name).is_file() for name in downloads)
    assert "Seeds of causal runs change the directions z only" in page


def test_rows_are_ranked_and_what_is_unfinished_or_failed_is_marked():
    best, worse = judged(0, 0.9), judged(0, 0.6, method="helene")
    table = table_of(worse, best, judged(1, 0.5, method="helene"), judged(0, 0.4, method="zero-shot"))
    (section,) = ranked.ranked_sections(table)
    assert section.title == "SST-2 (causal): m"
    html = shown(section)
    assert re.findall(r'<a href="#causal-sst2-([a-z-]+)-full">', html) == ["mezo", "helene", "zero-shot"]
    assert re.findall(r"<strong>([\d.]+)</strong>", html) == ["90.0"]
    assert "[31, 50]ʳ" in html.replace("\u00a0", " "), "one run of what no seed changes: Wilson's interval of 40 in 100"
    assert "badge" not in html
    same = numbers([judged(i, 0.301, method="zero-shot") for i in range(5)])
    assert same.over_rows
    assert same.shown_interval == pytest.approx((22.0, 39.7), abs=0.1), "not the rounding of a mean of equal values"
    what, found = table[MEZO]
    half = {MEZO: (dataclasses.replace(what, wanted=3, left=2), found)}
    assert "1 of 3: half finished" in shown(ranked.ranked_sections(half)[0])
    lost = Record.of("x", {**best.config, "seed": 9}, {**best.result, "status": "diverged", "test": None})
    one_lost = {MEZO: (dataclasses.replace(what, tests=(best, lost), wanted=2), found)}
    assert "1 of 2 failed" in shown(ranked.ranked_sections(one_lost)[0])


def test_cells_that_cannot_be_run_say_so_and_failed_runs_say_why():
    copa = table_of(judged(0, 0.6, task="copa"))
    html = shown(tables.table_section(BENCH, copa, TABLES["2"]))
    assert html.count("cannot be run: copa has no classes") == 2
    error = Record.of("x", judged(0, 0.6).config, {"status": "error", "message": "OSError: no weights"})
    failed = {MEZO: (CellRecords(None, (), 3, 3, failed=(error,)), None)}
    assert "1 runs failed: OSError: no weights" in shown(tables.table_section(BENCH, failed, TABLES["2"]))
    assert "OSError: no weights" in shown(details.cells_section(failed))


def test_a_sweep_whose_runs_all_failed_exits_with_1_and_says_why(capsys):
    error = Record.of("x", judged(0, 0.6).config, {"status": "error", "message": "OSError: no weights"})
    assert actions._all_failed([error, error]) == 1
    assert "all 2 runs failed: OSError: no weights" in capsys.readouterr().err
    assert actions._all_failed([error, judged(0, 0.6)]) == actions._all_failed([]) == 0


def test_main_pages_are_the_same_whatever_was_drawn_last(tmp_path):
    many = table_of(*(judged(i, m, method=n) for n, m in (("mezo", 0.8), ("helene", 0.5)) for i in (0, 1, 2)))
    few = table_of(judged(0, 0.7), judged(0, 0.9, method="helene"))
    for order in (("a", many), ("b", few)), (("b", few), ("a", many)):
        for name, table in order:
            writing.write(
                tmp_path / order[0][0] / "out", f"table-{name}", title=name, table=table, sections=[], command="c"
            )
    first, second = ((tmp_path / name / "out" / "index.html").read_text() for name in "ab")
    assert first == second
    assert "HELENE beats MeZO on none of 1 tasks; on SST-2 it reaches 50.0 %, MeZO 80.0 %" in first
    assert first.index("<strong>80.0</strong>") < first.index("50.0</td>")


def test_profiles_compare_task_and_seed_pairs_and_a_miss_is_never_within_a_factor():
    records = [judged(0, 0.8, 100), judged(1, 0.8, math.inf)]
    records += [judged(0, 0.8, 300, method="helene"), judged(1, 0.8, 100, method="helene")]
    assert figures.profile(table_of(*records)) is not None
    assert figures.profile(table_of(*records[:2])) is None
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


def test_figures_name_known_methods():
    from llm_bench.runs import methods

    for names in figures.FIGURES.values():
        assert all(name in methods.METHODS for name in names)
    assert figures.FIGURES.keys() == figures.TITLES.keys()


def test_every_page_of_the_committed_rows_is_drawn(tmp_path, capsys):
    (tmp_path / "llm").mkdir()
    (tmp_path / "llm" / "committed.sqlite").write_text("an earlier call's")
    assert helene_cli.main(["llm", "pages", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert all(Path(line).is_file() for line in said)
    names = {Path(line).stem for line in said}
    assert {"table-memory", "table-1-all", "table-2-small", "figure-ablation-parts", "figure-groups-groups"} <= names
    assert "figure-groups-parts" not in names  # its controls alone
    assert not {name for name in names if name.startswith("table") and name.endswith("parts")}
    drawn = {path.stem for path in (tmp_path / "llm").glob("*.html")} - {"index"}
    assert drawn == names
    rows = [r for path in (ROWS / "all").glob("*.jsonl") for r in read_jsonl(path)]
    for which in ("ablation", "curvature", "optimizers"):
        drawn_cells = json.loads((tmp_path / "llm" / f"figure-{which}-all.json").read_text())["cells"]
        own = [r.config for r in rows if r.config["method"] in figures.OWN[which] and r.config["role"] == "test"]
        assert {(c["kind"], c["task"]) for c in drawn_cells} == {(c["kind"], c["task"]) for c in own}
    told = json.loads((tmp_path / "llm" / "summary.json").read_text())["answer"]
    counts = re.search(r"HELENE beats MeZO on (\w+) of (\d+) tasks, MeZO beats HELENE on (\w+)", told)
    readme = re.search(r"HELENE beats MeZO beyond noise on (\w+) of (\d+) .* on (\w+)\.", learned.count(learned.rows()))
    assert counts is not None
    assert readme is not None
    assert counts.groups() == readme.groups(), "README counts as the pages do"
    front = json.loads((tmp_path / "llm" / "summary.json").read_text())["front"]["headline"]
    assert front.startswith("HELENE beats MeZO on {} of {} tasks; ".format(*counts.groups()))
    index = (tmp_path / "index.html").read_text()
    assert "Table 2: Causal language models" in index
    assert "Linear probing" in index.partition("<section")[0]


def test_committed_rows_that_cannot_be_put_together_are_one_line(tmp_path, capsys, monkeypatch):
    (tmp_path / "file").write_text("")
    (tmp_path / "o" / "llm" / "committed.sqlite").mkdir(parents=True)
    for out, message in (("file", "Not a directory"), ("o", "is no regular file")):
        assert helene_cli.main(["llm", "pages", "--out", str(tmp_path / out)]) == 2
        assert message in capsys.readouterr().err
    monkeypatch.setattr(committed_pages, "RECORDS", tmp_path / "none")
    assert helene_cli.main(["llm", "pages", "--out", str(tmp_path / "p")]) == 2
    assert "memory-h200.jsonl" in capsys.readouterr().err


def test_committed_rows_are_drawn_without_their_models_and_data(tmp_path, capsys):
    store = tmp_path / "rows.sqlite"
    with Store(store) as opened:
        opened.merge(ROWS / "small/masked-sst2.jsonl")
        rows = opened.records("llm/small")
    words = ["llm", "table", "1", "--draw-only", "--store", str(store), "--out", str(tmp_path)]
    assert helene_cli.main(words) == 0
    text = (tmp_path / "llm" / "table-1-small.html").read_text()
    tests = [r.result["test"]["metric"] for r in rows if (r.config["method"], r.config["role"]) == ("mezo", "test")]
    assert f"{100 * np.mean(tests):.1f} [" in text
    with Store(store) as opened:
        opened.put(dataclasses.replace(rows[0], config={**rows[0].config, "fingerprint": "other"}, key="0" * 24))
    assert helene_cli.main(words) == 2
    assert "the store has runs of several masked models" in capsys.readouterr().err


def test_a_table_is_drawn_of_what_no_others_show():
    """SST-2 by tuning is table 3 alone; of presets with more tasks it is drawn where a rival such as ZO-Adam is."""
    for preset, expected in (("table-3", ["3"]), ("all", ["1", "2", "3"]), ("small", ["1", "2"])):
        rows = [r for path in (ROWS / preset).glob("*.jsonl") for r in read_jsonl(path)]
        pages = committed_pages.pages_of(preset, rows)
        assert [which for what, which, _ in pages if what == "table"] == expected


def test_a_figure_is_drawn_of_what_it_is_about():
    """MeZO, its momentum and rivals stand beside: they make no page of HELENE's parts."""
    rows = [r for path in (ROWS / "groups").glob("*.jsonl") for r in read_jsonl(path)]
    assert {r.config["method"] for r in rows} >= {"mezo", "zo-sgd-mmt", "mezo-grouped-16"}
    assert committed_pages.pages_of("groups", rows) == [("figure", "groups", "groups")]


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


def test_two_trainings_of_a_model_under_one_name_are_never_mixed(tmp_path, monkeypatch):
    record = judged(0, 0.8)
    one, other = (
        Record.of("x", {**record.config, "fingerprint": mark * 8, "seed": seed}, record.result)
        for seed, mark in enumerate("ac")
    )
    with pytest.raises(ValueError, match="runs of 2 values of fingerprint, aaaaaaaa and cccccccc"):
        numbers([one, other])
    (tmp_path / "small").mkdir()
    write_jsonl(tmp_path / "small" / "causal-sst2.jsonl", [one, other], "test")
    monkeypatch.setattr(learned, "ROWS", tmp_path)
    with pytest.raises(ValueError, match=r"small/causal-sst2.jsonl has runs of 2 values of fingerprint"):
        learned.rows()


@pytest.mark.parametrize(("name", "value"), [("lr", 1.0), ("products", "tf32"), ("steps", 9)])
def test_a_mean_is_of_runs_that_differ_in_their_seeds(name, value):
    one = judged(0, 0.8)
    with pytest.raises(ValueError, match=f"values of {name}"):
        numbers([one, Record.of("x", {**one.config, name: value, "seed": 1}, one.result)])


def test_a_metric_of_no_test_rows_is_none():
    assert numbers([judged(0, math.nan)]) is None
    assert numbers([judged(0, math.nan), judged(1, 0.8)]).values == (80.0,)


def test_committed_files_with_two_results_of_one_run_are_not_drawn(tmp_path, monkeypatch):
    for folder, metric in (("a", 0.5), ("b", 0.6)):
        (tmp_path / "rows" / folder).mkdir(parents=True)
        write_jsonl(tmp_path / "rows" / folder / "x.jsonl", [judged(0, metric)], "test")
    write_jsonl(tmp_path / "memory-h200.jsonl", [], "test")
    monkeypatch.setattr(committed_pages, "RECORDS", tmp_path)
    with pytest.raises(StoreError, match=r"b/x.jsonl has another result of x/"):
        committed_pages.write_store(tmp_path / "store.sqlite")


def test_one_seed_of_each_method_decides_nothing_however_many_tasks():
    tasks = [
        judged(0, value, method=m, task=t) for m, value in (("helene", 0.5), ("mezo", 0.9)) for t in ("sst2", "cb")
    ]
    control = judged(0, 0.3, method="bias-only")
    one = "One seed of a method decides nothing: HELENE and MeZO have no second one on any of 2 tasks."
    assert tables.answer(table_of(*tasks, control)) == one, "of the control too"
    changed = table_of(judged(0, 0.5, method="helene"), judged(0, 0.9, method="helene-no-anneal"))
    assert changes.answer(changed, "ablation").startswith(
        "On SST-2 (causal) one seed of a method decides nothing: HELENE without anneal reaches 90.0 % in one run"
    )


def test_a_run_that_ended_before_its_second_look_is_named_and_hides_no_other():
    whole, lost = judged(0, 0.8), judged(1, 0.5)
    lost.result["curve"] = {name: column[:1] for name, column in lost.result["curve"].items()}
    text = shown(figures.section(table_of(whole, lost)))
    assert "Ended before a second look at dev, so not in the curves: MeZO on sst2 (causal), seed 1." in text
    assert text.count("<svg") == 2
    alone = shown(figures.section(table_of(lost)))
    assert "No test run with two looks at dev is there yet." in alone


def test_peaks_and_seconds_that_are_not_known_are_left_out():
    record = judged(0, 0.8)
    record.result.update(peak_bytes=None, training_seconds=None)
    found = numbers([record])
    assert (found.bytes, found.training_seconds, found.speed) == (None, None, None)


def test_test_runs_without_their_tuning_are_told_and_foreign_records_are_one_line(tmp_path, capsys):
    rows = read_jsonl(ROWS / "small/causal-copa.jsonl")
    tests = [r for r in rows if (r.config["role"], r.config["method"]) == ("test", "mezo")]
    words = ["llm", "table", "2", "--draw-only", "--out", str(tmp_path), "--store"]
    for name, records in (("tests", tests), ("whole", rows)):
        with Store(tmp_path / name) as store:
            for record in records:
                store.put(record)
        assert helene_cli.main([*words, str(tmp_path / name)]) == 0
        text = (tmp_path / "llm" / "table-2-small.html").read_text()
        assert (f"preset&#39;s: MeZO on copa (causal) {len(tests)}." in text) == (name == "tests")
    without = {name: value for name, value in tests[0].config.items() if name != "best"}
    for config, result, lack in (
        (without, tests[0].result, "setting 'best'"),
        ({"x": 1}, {"status": "reached"}, "setting 'kind'"),
        ({**tests[0].config, "seed": 99}, {}, "status"),
    ):
        with Store(tmp_path / f"foreign {lack}") as store:
            store.put(tests[0])
            store.put(Record.of("llm/small", config, result))
        assert helene_cli.main([*words, str(tmp_path / f"foreign {lack}")]) == 2
        assert f"has no {lack}: another program" in capsys.readouterr().err
