"""Tables and pages of records made by hand."""

import dataclasses
import json
import math
import re

import pytest
from handmade import MEZO, SMALL, judged, shown, table_of, tuned

from helene.lab.runs.store import Record
from llm_bench.cli import make
from llm_bench.protocol.execute import Bench, CellRecords
from llm_bench.protocol.paper_tables import TABLES
from llm_bench.protocol.plan import choose
from llm_bench.report import details, figures, ranked, tables, writing
from llm_bench.report.cell_numbers import numbers
from llm_bench.report.labels import step_size

BENCH = Bench(SMALL, {"causal": "gemma"}, None)


def test_seconds_of_steps_without_the_engine_are_told_apart():
    captured, plain = judged(0, 0.8), judged(0, 0.7, method="helene-backprop")
    captured.config["engine"] = True
    assert "Steps without the engine: HELENE, h by backpropagation (Algorithm 2)." in shown(
        tables.costs_section(table_of(captured, plain))
    )
    assert "without the engine" not in shown(tables.costs_section(table_of(captured)))
    assert "without the engine" not in shown(tables.costs_section(table_of(plain)))


def test_prompts_that_were_cut_are_told():
    long = judged(0, 0.5, method="icl", task="rte")
    long.result["method"] = {"share_cut": 0.25}
    assert "RTE (causal), ICL, 32 demonstrations: 25 % of the prompts" in shown(tables.facts_section(table_of(long)))
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
    assert "Without a curve, since no test run there has two looks at dev: MeZO on SST-2 (causal)." in shown(
        figures.section(table | of_another)
    )


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
    assert "<strong>" not in html, "bold is a lead beyond noise"
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
    assert make.all_failed([error, error]) == 1
    assert "all 2 runs failed: OSError: no weights" in capsys.readouterr().err
    assert make.all_failed([error, judged(0, 0.6)]) == make.all_failed([]) == 0


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
    assert first.index("80.0</td>") < first.index("50.0</td>")


def test_captions_tell_the_target_and_that_seeds_are_few():
    two = [judged(seed, 0.5 + seed / 10) for seed in (0, 1)]
    caption, *_ = re.findall(r'<p class="caption">([^<]*)', shown(ranked.ranked_sections(table_of(*two))[0]))
    assert "Target: 0.8 on dev." in caption
    assert "Two seeds tell next to nothing of the spread" in caption
    three = [judged(seed, 0.5 + seed / 10) for seed in (0, 1, 2)]
    other = shown(ranked.ranked_sections(table_of(*three))[0])
    assert "Two seeds" not in other


def test_seconds_to_a_target_that_most_runs_miss_are_a_dash_in_both_tables():
    missed = table_of(judged(0, 0.5, math.inf), judged(1, 0.5, math.inf))
    assert "∞" not in shown(tables.costs_section(missed)) + shown(ranked.ranked_sections(missed)[0])


def test_step_sizes_are_powers_of_ten_and_untrained_rows_end_in_nothing():
    assert [step_size(value) for value in (0.000192, 4.8e-05, 0.0309, 0.0, None)] == [
        "1.92×10⁻⁴",
        "4.80×10⁻⁵",
        "3.09×10⁻²",
        "0",
        None,
    ]
    untrained = judged(0, 0.5, method="zero-shot")
    untrained.result["status"] = "out_of_budget"
    assert "all steps made" not in shown(details.cells_section(table_of(untrained)))
    untrained.result["status"] = "error"
    assert "error" in shown(details.cells_section(table_of(untrained)))
