"""Tables, figures and pages, of records made by hand and of the committed ones."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
from handmade import MEZO, judged, shown, table_of, tuned

import llm_bench
from helene import cli as helene_cli
from helene.lab.store import Store
from llm_bench.cli import committed_pages
from llm_bench.protocol.execute import CellRecords
from llm_bench.protocol.paper_tables import TABLES
from llm_bench.protocol.plan import choose
from llm_bench.report import details, figures, tables

ROWS = Path(llm_bench.__file__).parent / "records" / "rows"


def test_the_first_line_says_when_nothing_beats_the_controls():
    control, mezo = judged(0, 0.77, method="bias-only"), judged(0, 0.75)
    assert tables.answer(table_of(control, mezo)).startswith("No row beats the controls that were run (bias-only)")
    better = tables.answer(table_of(control, judged(0, 0.85)))
    assert "MeZO reaches 85.0, the best control run here (Bias only" in better
    assert "nothing can be said" in tables.answer(table_of(mezo))
    choices = table_of(judged(0, 0.68, method="zero-shot", task="copa"), judged(0, 0.67, task="copa"))
    assert "no trained row beats the controls (Zero-shot 68.0, MeZO 67.0)" in tables.answer(choices)
    tie = tables.answer(table_of(control, judged(0, 0.77)))
    assert tie.startswith("No row beats")


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
    html = shown(tables.table_section(table, TABLES["2"], {"causal": "gemma"}))
    assert f'href="#{tables.anchor(MEZO)}">not tested yet' in html
    under_way = shown(details.cells_section(table, "helene llm table 2"))
    assert f'id="{tables.anchor(MEZO)}"' in under_way
    assert "2 step sizes" in under_way
    assert "No test run is there yet." in under_way
    failed = table_of(judged(0, 0.8))
    for record in failed[MEZO][0].tests:
        record.result.update(status="out_of_memory", test=None, curve=None)
    assert "out of memory" in shown(details.cells_section(failed, ""))
    of_failed = {MEZO: (failed[MEZO][0], None)}
    assert ">out of memory</a>" in shown(tables.table_section(of_failed, TABLES["2"], {"causal": "gemma"}))
    hopeless = {MEZO: (CellRecords(choose(grid), (), 3, 0, tuning=grid), None)}
    assert ">no step size ended well</a>" in shown(tables.table_section(hopeless, TABLES["2"], {"causal": "gemma"}))
    of_another = table_of(judged(0, 0.8, task="copa"))
    assert "so not drawn: MeZO on sst2 (causal)." in shown(figures.section(table | of_another))


def test_the_page_shows_both_numbers_links_and_what_was_not_run(tmp_path):
    records = [judged(0, 0.8), judged(1, 0.84), judged(0, 0.77, method="bias-only")]
    table = table_of(*records)
    paper = TABLES["2"]
    html = shown(tables.table_section(table, paper, {"causal": "gemma"}))
    assert "89.6" in html
    assert f'href="#{tables.anchor(MEZO)}"' in html
    assert html.count("not run") == len(paper.rows) - 2
    assert "gemma" in html
    cells_html = shown(details.cells_section(table, "helene llm table 2"))
    assert "method = &#34;mezo&#34;" in cells_html
    assert f'id="{tables.anchor(MEZO)}"' in cells_html
    costs = shown(tables.costs_section(table))
    assert "200" in costs
    path = tables.write(
        tmp_path,
        "table-2",
        title="t",
        table=table,
        sections=[figures.section(table)],
        command="helene llm",
    )
    assert path.read_text().count("<svg") >= 2
    assert json.loads((tmp_path / "llm/summary.json").read_text())["cells"]


def test_profiles_compare_task_and_seed_pairs_and_a_miss_is_never_within_a_factor():
    records = [judged(0, 0.8, 100), judged(1, 0.8, math.inf)]
    records += [judged(0, 0.8, 300, method="helene"), judged(1, 0.8, 100, method="helene")]
    assert figures.profile(table_of(*records)) is not None
    assert figures.profile(table_of(*records[:2])) is None
    missed = [judged(0, 0.8, math.inf), judged(0, 0.8, math.inf, method="helene")]
    assert figures.profile(table_of(*missed)) is None


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
    assert len(said) == len(committed_pages.PAGES)
    assert all(Path(line).is_file() for line in said)
    assert "Table 2: Causal language models" in (tmp_path / "index.html").read_text()


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
        opened.merge(ROWS / "small-masked-sst2.jsonl")
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
