"""The examples of README.md and docs/ run; the tables of docs/optimizers.md are true.

A block that must not run is preceded by ``<!-- not run: reason -->``.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

import helene
from helene.lab import costs
from helene.rules import precision
from tests.optimizers.contract.contract_table import METHODS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"(<!-- not run: [^\n]+ -->\n)?^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(page: Path) -> list[tuple[int, str]]:
    """Line number and text of each example that runs."""
    text = page.read_text(encoding="utf-8")
    return [(text.count("\n", 0, m.start(2)), m.group(2)) for m in BLOCK.finditer(text) if not m.group(1)]


@pytest.mark.llm
@pytest.mark.filterwarnings("ignore:steps run without a CUDA graph")  # README.md shows the engine
@pytest.mark.filterwarnings("ignore:'pin_memory' argument", "ignore:`is_gradient_checkpointing`")  # of the Trainer
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_run(page, tmp_path, monkeypatch):
    """In order, in one namespace, in an empty folder; a failure's traceback names the line of the page."""
    monkeypatch.chdir(tmp_path)
    state, namespace = torch.get_rng_state(), {"__name__": "__main__"}
    try:
        for line, source in blocks(page):
            exec(compile("\n" * line + source, str(page), "exec"), namespace)
    finally:
        torch.set_rng_state(state)


@pytest.mark.llm
def test_the_notebook_runs(tmp_path, monkeypatch, capsys):
    """Every cell in order, with few steps; what it prints has the form of the outputs that are kept in it."""
    monkeypatch.chdir(tmp_path)
    cells = json.loads((ROOT / "examples" / "fine_tune_on_a_cpu.ipynb").read_text(encoding="utf-8"))["cells"]
    state, namespace = torch.get_rng_state(), {}
    try:
        for cell in (cell for cell in cells if cell["cell_type"] == "code"):
            source = re.sub(r"^(PRETRAINING_STEPS|STEPS) = \d+", r"\1 = 4", "".join(cell["source"]), flags=re.MULTILINE)
            exec(compile(source, cell["id"], "exec"), namespace)
            kept = "".join("".join(output["text"]) for output in cell["outputs"])
            shapes = [re.sub(r"[\d.,]+", "0", text) for text in (capsys.readouterr().out, kept)]
            assert shapes[0] == shapes[1], cell["id"]
    finally:
        torch.set_rng_state(state)
    assert namespace["STEPS"] == 4


def test_blocks_are_found():
    """The pattern sees every python fence, so that none is passed over in silence."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert len(BLOCK.findall(text)) == len(re.findall(r"^[ \t]*```[ \t]*(?:python|py)\b", text, re.MULTILINE))
    assert len(blocks(ROOT / "docs" / "optimizers.md")) >= 10


def test_every_word_of_the_glossary_stands_once_and_its_module_is_there():
    lines = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").splitlines()
    entries = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.endswith("` |")]
    words = [word for entry in entries for word in entry[0].split(", ")]
    assert len(words) == len(set(words)) >= 50
    assert [path for *_, path in entries if not (ROOT / path.strip("`")).is_file()] == []


def test_users_checkers_read_the_types():
    """By PEP 561; what they see is in `tests/optimizers/types_of_users.py`, which mypy checks."""
    assert (ROOT / "helene" / "py.typed").is_file()


def rows(heading: str) -> list[list[str]]:
    text = (ROOT / "docs" / "optimizers.md").read_text(encoding="utf-8")
    lines = text[text.index(heading) :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip().strip("`") for cell in line.strip("|").split(" | ")] for line in lines]


def build(name, p, **more):
    options = {"Helene": {"anneal_horizon": 9}}.get(name, {})
    if name in ("Helene", "ZOSophia", "ZONewton") and more.get("curvature") != "none":
        options["batch_size"] = 4
    return getattr(helene, name)([p], 0.0, **options, **more)


def test_the_table_of_methods():
    """Forwards, draws, state and replayability of each class are those of an optimizer made with the defaults."""
    table = rows("| class | update")
    assert sorted(row[0] for row in table) == sorted(helene.optimizers.__all__)
    coupled = {method.name: method.contract.coupled for method in METHODS}
    for name, _, forwards, draws, state, decay, replayable, _ in table:
        p = torch.nn.Parameter(torch.ones(100))
        optimizer = build(name, p)
        closures = [lambda p=p: p.sum()] + ([lambda p=p: p.view(10, 10) * 1.0] if name == "SophiaG" else [])
        optimizer.step(*closures)
        with costs.counted_normals() as counts:
            optimizer.step(*closures)
        assert optimizer.forwards_at(2) == int(forwards), name
        assert counts["elements"] == 100 * int(draws), name
        assert len(optimizer.state_names) == int(state), name
        assert optimizer.replayable == (replayable in ("yes", "spsa")), name
        curved = "curvature" in optimizer.param_groups[0] and name != "SophiaG"
        assert (replayable == "spsa") == curved, name
        assert (decay == "coupled") == coupled[name], name


def test_the_table_of_bytes():
    """The predictions are those of the code, the measured figures within 2 % (`test_memory` measures them anew)."""
    layouts = [(torch.float32, "float32"), *((torch.bfloat16, s) for s in precision.STATE_DTYPES)]
    for label, *cells in rows("| method | float32"):
        name, _, rest = label.partition(", ")
        more = {"no h": {"curvature": "none"}, "h by backward": {"curvature": "backprop"}}.get(rest, {})
        for (dtype, state_dtype), cell in zip(layouts, cells, strict=True):
            p = torch.nn.Parameter(torch.zeros(1 << 16, dtype=dtype))
            predicted = costs.predicted_bytes(build(name, p, state_dtype=state_dtype, **more)) / (1 << 16)
            measured, stated = re.fullmatch(r"([\d.]+) \(([\d.]+)\)", cell).groups()
            assert stated == f"{predicted:.2f}"
            assert abs(float(measured) - predicted) <= 0.02 * predicted
