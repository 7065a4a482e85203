"""The pages of committed rows, and of stores that are drawn without models and data."""

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
from handmade import judged

import llm_bench
from helene import cli as helene_cli
from helene.lab.runs.records import write_jsonl
from helene.lab.runs.store import Record, Store, StoreError, read_jsonl
from llm_bench.cli import committed_pages
from llm_bench.report import figures
from tools import learned

ROWS = Path(llm_bench.__file__).parent / "records" / "rows"


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
    told = learned.count(learned.rows())
    readme = re.search(r"HELENE beats MeZO beyond noise on (\w+) of (\d+) .* on (\w+), and", told)
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


def test_committed_files_with_two_results_of_one_run_are_not_drawn(tmp_path, monkeypatch):
    for folder, metric in (("a", 0.5), ("b", 0.6)):
        (tmp_path / "rows" / folder).mkdir(parents=True)
        write_jsonl(tmp_path / "rows" / folder / "x.jsonl", [judged(0, metric)], "test")
    write_jsonl(tmp_path / "memory-h200.jsonl", [], "test")
    monkeypatch.setattr(committed_pages, "RECORDS", tmp_path)
    with pytest.raises(StoreError, match=r"b/x.jsonl has another result of x/"):
        committed_pages.write_store(tmp_path / "store.sqlite")


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
        assert (f"preset&#39;s: MeZO on COPA (causal) {len(tests)}." in text) == (name == "tests")
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
