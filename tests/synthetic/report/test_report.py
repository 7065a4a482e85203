"""The report's files have their forms."""

from __future__ import annotations

import csv
import re
import subprocess
import sys

import numpy as np
import pytest
from markupsafe import escape
from pyarrow import parquet

from helene.lab.report.drawing import PALETTE
from helene.lab.report.index_page import write_index
from helene.lab.report.method_colours import PLACES
from helene.lab.report.pages import write_report_text
from helene.lab.runs import canonical
from helene.lab.runs.records import Record
from synthetic.analysis.results import collect
from synthetic.analysis.verdicts import analyse
from synthetic.design import known
from synthetic.report.export import CSV_COLUMNS
from synthetic.report.guards import missed_of
from synthetic.report.pictures import pictures_of
from synthetic.report.related import refresh, related_section
from synthetic.report.runs import COLUMNS
from synthetic.report.write import write_report
from tests.synthetic.scaling_cases import CONTROL_LAWS, STANDARD, follows_max_d, made_up

FACTS = {"commit": None, "dirty": None, "versions": {}, "command": "helene scaling"}
FIT = {"alpha": (list, None), "beta": (list, None), "reason": str, "cells": int, "censored": int, "fixed_d": bool,
       "residual_sd": (float, None), "local_slope_differences": dict}  # fmt: skip
SCHEMA = {
    "schema": str, "title": str, "answer": str, "command": str, "preset": str, "failed": list, "provenance": dict,
    "front": {"says": str, "picture": {"file": str, "caption": str}},
    "run_seconds": float,
    "series": [{
        "name": str, "family": str, "start": str, "method": str, "variant": str, "borrowed": str, "unsupported": [str],
        "follows": str, "verdict": str, "verdict_subset": str, "fits": {"all": FIT, "d >= 64": FIT, "w >= 16": FIT},
        "explanations": [{"name": str, "error": float, "excess": float, "excess_se": float, "num_params": int}],
        "steps_against_mezo": (list, None), "forwards_against_mezo": (list, None),
        "tuning": {"step_size_range": (list, None), "step_size_median": (float, None), "chosen": dict, "at_edge": [str],
                   "censored": [str], "trials": int, "diverged_share": (float, None), "stalled_share": (float, None),
                   "useful_width": (float, None)},
        "cells": [{"key": str, "n": int, "max_d": int, "d": int, "trace_over_mu": float, "status": str,
                   "steps_median": float, "steps": list, "cap": float, "forwards_per_step": (float, None), "best": dict,
                   "edge": bool, "predicted": (float, None), "theory": str, "predicted_range": (list, None)}],
    }],
    "controls": [{"kind": str, "series": str, "passed": bool, "measured": FIT, "predicted_alpha": (float, None),
                  "predicted_beta": (float, None), "largest_error": float, "cells_in_range": [int],
                  "cells_left_out": int, "theory": [str]}],
    "explanations": [{"series": str, "steps_against_mezo": list, "outcome": str, "cause": str, "controls": dict}],
}  # fmt: skip


def check(value, schema, where="summary"):
    """Every entry named by the schema is there with its kind, and no other."""
    if isinstance(schema, dict):
        assert isinstance(value, dict), where
        assert set(value) == set(schema), f"{where}: {set(value) ^ set(schema)}"
        for name in schema:
            check(value[name], schema[name], f"{where}.{name}")
    elif isinstance(schema, list):
        assert isinstance(value, list), where
        for i, item in enumerate(value):
            check(item, schema[0], f"{where}[{i}]")
    elif isinstance(schema, tuple):
        assert value is None or isinstance(value, schema[0]), f"{where}: {value!r}"
    else:
        kinds = (int, float) if schema is float else schema
        assert isinstance(value, kinds), f"{where}: {value!r} is no {schema.__name__}"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    out = tmp_path_factory.mktemp("reports")
    records = made_up(STANDARD, {**CONTROL_LAWS, "theorem": follows_max_d})
    broken = Record.of("scaling", records[5].config, {"status": "error", "message": "ValueError: no luck"})
    records[5] = broken
    said, sound = write_report(out, STANDARD, records, "helene scaling --preset standard --out reports", FACTS)
    return out, said, sound


def test_summary_has_its_schema(written):
    out, said, sound = written
    summary = canonical.loads((out / "scaling" / "summary.json").read_text())
    check(summary, SCHEMA)
    assert summary["answer"] == said
    assert not sound, "a failed cell must show in the exit code"
    assert summary["failed"][0]["message"] == "ValueError: no luck"
    verdicts = {s["verdict"] for s in summary["series"]}
    assert verdicts <= {"consistent", "not_consistent", "not_resolved", "outside_hypotheses", "broken_instrument"}


def test_exponents_are_a_table(written):
    rows = list(csv.DictReader((written[0] / "scaling" / "exponents.csv").read_text().splitlines()))
    assert tuple(rows[0]) == CSV_COLUMNS
    assert {r["subset"] for r in rows} == {"all", "d >= 64", "w >= 16"}
    row = next(r for r in rows if (r["family"], r["method"], r["subset"]) == ("quadratic", "mezo", "all"))
    assert float(row["beta_low"]) <= float(row["beta"]) <= float(row["beta_high"])


def test_what_is_concluded_is_there_in_short(written):
    """A line per series, with the median of every cell under the name of its record."""
    lines = [canonical.loads(x) for x in (written[0] / "scaling" / "series.jsonl").read_text().splitlines()]
    summary = canonical.loads((written[0] / "scaling" / "summary.json").read_text())
    own = {s["name"]: s for s in summary["series"] if not s["borrowed"]}
    found = {line["series"]: line for line in lines if "series" in line}
    assert found.keys() == own.keys()
    for name, line in found.items():
        assert (line["verdict"], line["follows"]) == (own[name]["verdict"], own[name]["follows"])
        medians = {c["key"][:12]: np.median(c["steps"]) for c in own[name]["cells"]}
        assert {key: steps for key, *_, steps, _ in line["cells"]} == pytest.approx(medians, rel=1e-3)
    assert {"provenance"} <= set(lines[0])
    assert sum("explanation" in line for line in lines) == len(summary["explanations"])
    assert any("sensitivity" in line and line["width"] for line in lines)


def test_runs_are_a_table(written):
    table = parquet.read_table(written[0] / "scaling" / "runs.parquet")
    assert tuple(table.column_names) == COLUMNS
    assert set(table["status"].to_pylist()) == {"reached"}
    assert table.num_rows > 1000


def test_page_is_one_file_that_needs_no_network(written):
    texts = {name: (written[0] / "scaling" / name).read_text() for name in ("index.html", "evidence.html")}
    addresses = {}
    for name, page in texts.items():
        assert len(page) < 3 * 2**20
        assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", page)
        assert "<script" not in page
        assert str(escape(written[1])) in page
        addresses[name] = re.findall(r'\bid="([^"]+)"', page)
        assert len(addresses[name]) == len(set(addresses[name]))
    for name, page in texts.items():
        links = re.findall(r'href="(evidence\.html)?#([^"]+)"', page)
        assert links
        assert all(address in addresses[other or name] for other, address in links)
    assert str(escape(written[1])) in (written[0] / "index.html").read_text()
    figures = {p.suffix for p in (written[0] / "scaling" / "figures").iterdir()}
    assert figures == {".svg", ".png"}


def test_the_first_page_is_an_answer_a_picture_and_a_table_in_words_that_are_the_same_everywhere(written):
    """One row, one verdict: the table of the first page, the families and the conclusions say the same of HELENE."""
    first, second = ((written[0] / "scaling" / name).read_text() for name in ("index.html", "evidence.html"))
    assert first.count("<figure>") == first.count("<table") == 1
    assert "same runs as from" in first, "rows that share runs say so"
    assert "luck" in first, "a cell that failed is told"
    for page in (first, second):
        assert "not consistent" not in page
    before_controls = second.partition('id="controls"')[0]
    mezo = re.findall(r">MeZO(?:</a>)?</td><td[^>]*>([^<]*)</td>", before_controls)
    assert set(mezo) == {"yes"}, "the same word in the families and in the conclusions"
    assert "passed" not in before_controls
    assert re.search(r'data-head="HELENE: grows with d\?">yes<', first)


def test_pages_beside_it_are_linked_whichever_was_written_first(tmp_path):
    folder = tmp_path / "scaling"
    leaf = {"title": "A toy", "answer": "It <works>.", "command": "c"}
    write_report_text(folder / "index.html", str(related_section(folder).body[0]))
    assert "None yet" in (folder / "index.html").read_text()
    for name in ("figures/toy", "agnb"):
        write_report_text(folder / f"{name}.html", "<p>")
        write_report_text(folder / f"{name}.json", canonical.dumps({**leaf, "title": name}))
        refresh(folder)
    page = (folder / "index.html").read_text()
    assert re.findall(r'href="([^"]+)"', page) == ["agnb.html", "figures/toy.html"]
    assert "It &lt;works&gt;." in page
    assert page == str(related_section(folder).body[0])
    write_index(tmp_path)
    assert 'href="scaling/figures/toy.html"' in (tmp_path / "index.html").read_text()


def test_drawing_never_imports_torch():
    code = "import sys, synthetic.report.write; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_measuring_never_imports_matplotlib():
    code = "import sys, synthetic.run, synthetic.cli; assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_row_shows_the_sizes_of_the_cells_that_it_is_fitted_on(written):
    """Where the fit rests on the cells with d >= 64, the range of d starts there."""
    page = (written[0] / "scaling" / "evidence.html").read_text()
    conclusions = page.partition('id="conclusions"')[2].partition('id="controls"')[0]
    rows = re.findall(r">(\d+) of (\d+) cells</a></td><td[^>]*>(\d+)", conclusions)
    assert any(used != most for used, most, _ in rows)
    assert all(int(least) >= 64 for used, most, least in rows if used != most)


def test_a_caption_tells_of_dashes_where_there_are_some():
    rows = analyse(collect(STANDARD, made_up(STANDARD, {**CONTROL_LAWS, "theorem": follows_max_d})))
    drawn = [cut for cuts in pictures_of(rows).values() for cut in cuts]
    assert {name.partition("-")[0] for name, _, _ in drawn} == {"zeroth", "first"}
    for name, _, caption in drawn:
        assert ("Dashed" in caption) == name.startswith("zeroth"), caption


def test_runs_that_missed_are_counted():
    """A cell whose median seed reached the target has runs that missed."""
    records = made_up(STANDARD, CONTROL_LAWS)
    (cell,) = [c for c in STANDARD.cells if c.family == "digits" and c.config["method"] == "mezo"][:1]
    record = next(r for r in records if r.config == cell.config)
    record.result["test"]["steps"][:3] = [float("inf")] * 3
    rows = [a for a in analyse(collect(STANDARD, records)) if record.key in {c.key for c in a.series.cells}]
    runs = sum(len(c.steps) for c in rows[0].series.cells)
    assert missed_of(rows[0]) == (3, runs)


def test_a_method_has_one_colour_in_all_figures():
    """That of its title in the drawing's text; MeZO's and HELENE's are nobody else's."""
    for gradients in (True, False):
        own = [PLACES[n] for n, m in known().items() if m.drawn and m.gradients is gradients and n in PLACES]
        assert len(set(own)) == len(own)
    rows = analyse(collect(STANDARD, made_up(STANDARD, {**CONTROL_LAWS, "theorem": follows_max_d})))
    drawings = {name: d for cuts in pictures_of(rows).values() for name, d, _ in cuts}
    shown = {"zeroth": {"mezo", "helene", "per_layer", "heavy_ball"}}
    shown["first"] = {"theorem", "theorem_one_clip", "gradient_descent"}
    for name, drawing in drawings.items():
        colours = {PALETTE[PLACES[method]] for method in shown[name.partition("-")[0]]}
        assert {colour for colour in PALETTE if colour in drawing.svg} == colours, name


def test_records_stand_on_one_line(written):
    page = (written[0] / "scaling" / "evidence.html").read_text()
    assert re.search(r"code\.id \{[^}]*white-space: nowrap", page)
    assert re.findall(r"<code([^>]*)>[0-9a-f]{12}</code>", page)
    assert set(re.findall(r"<code([^>]*)>[0-9a-f]{12}</code>", page)) == {' class="id"'}
