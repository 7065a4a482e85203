"""Pages: one file, no network, valid anchors, escaped text; the index; the templates in the wheel."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import zipfile
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markupsafe import Markup

from helene.lab.report import index_page, page_footer, pages
from helene.lab.report.drawing import Drawing
from helene.lab.report.report_files import read_parts

ROOT = Path(__file__).parents[2]
VOID = {"meta", "link", "br", "hr", "img", "input"}
FIGURE = Drawing(
    '<svg role="img" xmlns="http://www.w3.org/2000/svg"><defs><path id="f1-a"/></defs><use href="#f1-a"/></svg>',
    bytes,
    "alt",
)


class Reader(HTMLParser):
    """Collects addresses, ids and text, and checks that elements nest."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.links, self.sources, self.tags, self.text = [], [], [], [], [], ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        self._note(tag, dict(attributes))

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self._note(tag, dict(attributes))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data

    def _note(self, tag, attributes):
        if "id" in attributes:
            self.ids.append(attributes["id"])
        for name, value in attributes.items():
            if tag == "a" and name == "href":
                self.links.append(value)
            elif name in {"href", "src", "srcset", "data", "action", "poster", "xlink:href"}:
                self.sources.append(value)
            assert not name.startswith("on"), "no scripts"


def check(text):
    """A page that needs nothing but itself."""
    page = Reader(text)
    assert "script" not in page.tags
    assert all(source.startswith(("#", "data:")) for source in page.sources), page.sources
    css = "".join(re.findall(r"<style>(.*?)</style>", text, re.DOTALL))
    assert "@import" not in css
    assert "url(" not in css
    assert "http" not in re.sub(r'<a [^>]*href="[^"]*"', "", text)
    assert len(page.ids) == len(set(page.ids))
    for address in page.links + page.sources:
        if address.startswith("#"):
            assert address[1:] in page.ids, address
    return page


def sample(**changes):
    table = pages.table(
        ["method", "alpha", "95 %", "verdict"],
        [["HELENE", 0.0312, pages.interval(-0.01, 0.07), pages.badge("not_consistent")], ["<b>", None, "–", True]],
        caption="Exponents, in `log` space",
        anchors=["row-1", ""],
    )
    one = {
        "title": "Scaling <script>alert(1)</script>",
        "answer": "It follows `d`, not max d & so on.",
        "sections": [
            pages.Section("First part", [pages.paragraph("a < b"), table, pages.figure(FIGURE, "the `grid`")]),
            pages.Section("Second", [pages.details("More", [pages.code_block("x < 1")]), "plain <text>"], "two"),
            pages.Section("Third", [pages.subtitle("A point"), Markup('<a href="https://example.org">x</a>')]),
        ],
        "command": "helene scaling --out reports",
        "provenance": {
            "commit": "0123456789abcdef",
            "dirty": True,
            "gpu": None,
            "versions": {"python": "3.11", "torch": "2.13"},
            "extra": ["a", "b"],
        },
    }
    return pages.render_page(**{**one, **changes})


def test_page_is_self_contained_escaped_and_complete():
    text = sample()
    page = check(text)
    assert text.startswith("<!DOCTYPE html>")
    assert 'name="viewport"' in text
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text
    assert "xmlns" not in text
    assert {"first-part", "two", "third", "row-1", "a-point", "f1-a"} <= set(page.ids)
    assert {"#first-part", "#two", "#third", "../index.html"} <= set(page.links)
    said = " ".join(page.text.split())
    for expected in (
        "It follows d, not max d & so on.",
        "a < b",
        "plain <text>",
        "Scaling <script>alert(1)</script>",
        "0123456789ab with uncommitted changes",
        "python 3.11, torch 2.13",
        "a, b",
        "helene scaling --out reports",
        "✗ not consistent",
    ):
        assert expected in said, expected
    assert "gpu" not in said
    assert "<code>d</code>" in text
    assert "<code>log</code>" in text


def test_page_is_the_same_twice_and_needs_little():
    assert sample() == sample()
    bare = check(sample(sections=[], provenance=None, back=""))
    assert bare.links == []


def test_answer_may_be_html():
    assert "<em>d</em>" in sample(answer=Markup("It follows <em>d</em>"))


@pytest.mark.parametrize(
    ("word", "tone"),
    [
        ("consistent", "good"),
        ("not_consistent", "bad"),
        ("not_resolved", "calm"),
        ("outside_hypotheses", "calm"),
        ("broken_instrument", "warn"),
        ("holds", "good"),
        ("holds_after_repair", "warn"),
        ("refuted", "bad"),
        ("ill_posed", "warn"),
        ("not_decidable", "calm"),
        ("reached", "good"),
        ("<new>", "calm"),
    ],
)
def test_badges(word, tone):
    text = pages.badge(word)
    assert f'class="badge {tone}"' in text
    assert Reader(text).text[0] in "✓✗!○"
    assert word.replace("_", " ") in Reader(text).text


def test_table_aligns_numbers_and_refuses_ragged_rows():
    text = pages.table(["a", "b"], [["x", 1], ["y", None]])
    assert text.count('class="num"') == 3
    assert pages.table(["a"], [["x"]], numeric=[0]).count('class="num"') == 2
    assert check(f"<html>{pages.table(['a'], [])}</html>").tags.count("th") == 1
    with pytest.raises(ValueError, match="each row must have 2 cells, one per header, got 1"):
        pages.table(["a", "b"], [["x"]])


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0, "0"),
        (0.0, "0"),
        (12, "12"),
        (0.0312, "0.0312"),
        (0.99999, "1.00"),
        (1234.5, "1230"),
        (12345, "12\u202f345"),
        (-2.5, "−2.50"),
        (3e8, "3.00×10⁸"),
        (1.5e-7, "1.50×10⁻⁷"),
        (float("inf"), "∞"),
        (float("-inf"), "−∞"),
        (float("nan"), "–"),
        (None, "–"),
    ],
)
def test_numbers_for_people(value, said):
    assert pages.number(value) == said


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (-0.01, 0.07, "[−0.01, 0.07]"),
        (0.9412, 0.9471, "[0.941, 0.947]"),
        (100, 2300, "[100, 2300]"),
        (0.5, 0.5, "[0.500, 0.500]"),
        (1.0, float("inf"), "[1.00, ∞]"),
    ],
)
def test_intervals_for_people(low, high, said):
    assert pages.interval(low, high).replace("\u00a0", " ") == said


def test_index_lists_what_is_made_and_what_is_not(tmp_path):
    out = tmp_path / "reports"
    page = check(index_page.write_index(out).read_text(encoding="utf-8"))
    assert [(part.name, part.made) for part in read_parts(out)] == [
        *((name, False) for name in ("llm", "scaling", "theory", "demo"))
    ]
    for command in (
        "helene scaling --preset standard --out reports",
        "pytest theory/ --reports reports",
        "helene llm pages --out reports",
        "helene llm demo --out reports",
    ):
        assert command in page.text
    assert page.links == []

    pages.write_report_text(out / "scaling" / "index.html", sample())
    summary = pages.write_summary(
        out, "scaling", title="Steps & dimension", answer="d < max d", command="helene scaling", slope=float("inf")
    )
    assert json.loads(summary.read_text()) == {
        "title": "Steps & dimension",
        "answer": "d < max d",
        "command": "helene scaling",
        "slope": {"$float": "inf"},
    }
    pages.write_summary(out, "extra", title="One more", answer="yes", command="x")
    page = check(index_page.write_index(out).read_text(encoding="utf-8"))
    assert page.links == ["scaling/index.html"]
    for said in ("Steps & dimension", "d < max d", "One more", "Not made yet"):
        assert said in page.text
    assert page.text.index("One more") < page.text.index("A toy")


def test_make_report_leaves_the_toy_alone_to_be_made(tmp_path):
    said = subprocess.run(["make", "-n", "report"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    parts = read_parts(tmp_path / "reports")
    assert [part.name for part in parts if part.command not in said] == [part.name for part in parts if part.toy]


def test_the_index_begins_with_what_the_parts_give_it(tmp_path):
    """Headline, sentences, ranked table and picture stand before the parts; a picture that is missing is left out."""
    ranked = {"headers": ["m", "%"], "rows": [["MeZO", "85.8"], ["HELENE", "58.1"]], "caption": "SST-2"}
    front = {"headline": "MeZO & not", "says": "One <thing>.", "table": ranked}
    pages.write_summary(tmp_path, "llm", title="t", answer="not shown here", command="c", front=front)
    drawn = {"says": "Another.", "picture": {"file": "a.svg", "caption": "the picture"}}
    pages.write_summary(tmp_path, "scaling", title="t", answer="a", command="c", front=drawn)
    assert "<figure>" not in index_page.write_index(tmp_path).read_text(encoding="utf-8")
    pages.write_report_text(tmp_path / "scaling" / "a.svg", FIGURE.svg)
    text = index_page.write_index(tmp_path).read_text(encoding="utf-8")
    page = check(text)
    assert "not shown here" not in text
    order = ["MeZO & not", "One <thing>.", "Another.", "SST-2", "85.8", "58.1", "the picture", "Not made yet"]
    places = [page.text.index(said) for said in order]
    assert places == sorted(places)


def test_tables_of_many_columns_fold_on_a_phone_and_name_each_value():
    headers, row = ["a", "b", Markup("<i>c</i>"), "d", "e"], list("vwxyz")
    assert '<td data-head="c">x</td>' in pages.table(headers, [row])
    assert "data-head" not in pages.table(headers[:4], [row[:4]])
    assert "data-head" not in pages.table(headers, [row] * 41), "a long list scrolls"


def test_the_foot_tells_downloads_citation_and_where_it_was_measured():
    text = sample(downloads=[("CSV", "a.csv")], measured="a card, 2026-01-02")
    page = check(text)
    assert "a.csv" in page.links
    said = " ".join(page.text.split())
    for expected in ("helene records show ID", "@software{helene_suite", "measured on", "a card, 2026-01-02"):
        assert expected in said, expected


def test_the_foot_tells_the_start_of_the_run_from_where_it_was_drawn():
    """The time is that of the run's start: pages may be drawn hours later."""
    found = dict(page_footer.facts({"cpu": "a processor", "timestamp": "2026-01-02T03:04:05+00:00"}, "c", ""))
    assert found == {"drawn on": "a processor", "run started": "2026-01-02T03:04:05+00:00"}


@pytest.mark.parametrize("text", ["{", '{"title": "x"}', "[]", '"x"'])
def test_a_broken_summary_does_not_hide_the_others(tmp_path, text):
    pages.write_report_text(tmp_path / "theory" / "summary.json", text)
    pages.write_summary(tmp_path, "scaling", title="t", answer="an answer", command="c")
    said = check(index_page.write_index(tmp_path).read_text(encoding="utf-8")).text
    assert "summary.json cannot be read" in said
    assert "an answer" in said
    assert "pytest theory/" in said


def test_unwritable_report_folder(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match=r"cannot write .*file.*; choose a folder"):
        index_page.write_index(tmp_path / "file")


def test_wheel_carries_the_templates_and_renders_away_from_the_checkout(tmp_path):
    pytest.importorskip("hatchling", reason="builds a wheel without network")
    source = tmp_path / "source"  # hatchling leaves nothing in the checkout
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, source)
    for name in ("helene", "synthetic", "theory", "llm_bench"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "records"))
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist")]
    subprocess.run(build, cwd=source, check=True, capture_output=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    installed = tmp_path / "installed"
    zipfile.ZipFile(wheel).extractall(installed)
    shutil.rmtree(source)
    code = (
        f"import sys; sys.path.insert(0, {str(installed)!r})\n"
        "import helene.lab.report.index_page as index_page, pathlib\n"
        f"assert index_page.__file__.startswith({str(installed)!r}), index_page.__file__\n"
        "print(index_page.write_index(pathlib.Path('reports')))\n"
        "assert 'torch' not in sys.modules and 'matplotlib' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    check((tmp_path / "reports" / "index.html").read_text(encoding="utf-8"))


def test_letters_are_drawn_once_for_all_figures_of_a_page():
    """Two drawings with the same letter and one of their own each: three outlines, and every use finds its own."""

    def drawing(name, own):
        outlines = "".join(
            f'<path id="{name}-{letter}" d="{d}" transform="scale(0.015625)"/>\n'
            for letter, d in {"a": "M 0 0", "b": own}.items()
        )
        uses = f'<use href="#{name}-a"/><use href="#{name}-b" transform="translate(5 0)"/>'
        return Drawing(f'<svg role="img"><defs>{outlines}</defs>{uses}</svg>', bytes, "alt")

    figures = [pages.figure(drawing(name, own), "c") for name, own in (("f1", "M 1 1"), ("f2", "M 2 2"))]
    text = pages.render_page(title="T", answer="A", sections=[pages.Section("S", figures)], command="c")
    found = dict(re.findall(r'<path id="([^"]+)" d="([^"]+)"', text))
    used = [found[name] for name in re.findall(r'<use href="#([^"]+)"', text)]
    assert used == ["M 0 0", "M 1 1", "M 0 0", "M 2 2"]
    assert len(found) == 3
    Reader(text)


def test_the_citations_lines_are_as_short_as_the_page_is_wide():
    assert max(map(len, page_footer.CITATION.splitlines())) <= 100
