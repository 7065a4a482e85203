"""docs/adding_an_optimizer.md, followed in a copy of the checkout: a file and an entry, and the toy is everywhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import helene
from helene.methods import ENTRIES
from helene.steps.base import Base
from helene.steps.first import FirstOrder
from helene.steps.zeroth import ZerothOrder
from tests.optimizers.contract.contract_table import METHODS, quadratic

ROOT = Path(__file__).parents[1]
SEEN = """
from dataclasses import replace
import torch, helene
from torch import nn
from benchmarks import common, counts
from llm_bench.protocol import paper_tables, presets
from llm_bench.report import figures, tables
from llm_bench.runs import methods
from synthetic.analysis.results import collect
from synthetic.analysis.verdicts import analyse
from synthetic.design import load, trials
from synthetic.report.pictures import pictures_of
from synthetic.run import run_cell
from tests.optimizers.contract.contract_table import METHODS, quadratic
from tests.paths import contract, table
from tests.synthetic.scaling_cases import CONTROL_LAWS, made_up

assert helene.ZOSquash.__module__ == "helene.optimizers.squash"
method = next(m for m in METHODS if m.name == "ZOSquash")
target = quadratic(torch.float64)
optimizer = method.build(target.model.named_parameters(), target.lr(method), eps=target.eps)
first = target.loss().item()
for _ in range(100):
    optimizer.step(target.loss)
assert target.loss().item() < 0.5 * first
shown = [row for row in table.rows() if row.case.method == "ZOSquash" and row.option == "sharpness"]
assert shown and all(contract.shows(row).kind == "agreed" for row in shown)

quick = load("quick", "noise")
quick = replace(quick, cells=tuple(c for c in quick.cells if c.config["problem"]["layers"][0][0] == 4))
cell = next(c for c in quick.cells if c.config["method"] == "zo_squash")
assert len(trials(cell.config["space"])) == 24
few = {**cell.config["space"], "sharpness": [0.1, 1.0], "log2_q": {"from": -2, "to": -1, "per_octave": 1}}
assert run_cell({**cell.config, "space": few, "seeds": {"tuning": [1000], "test": [0]}})["status"] == "reached"
[[(_, drawing, _)]] = pictures_of(analyse(collect(quick, made_up(quick, CONTROL_LAWS)))).values()
assert "ZO-Squash" in drawing.alt

assert ("zo-squash", "lora") in paper_tables.TABLES["3"].rows
assert "zo-squash" in presets.PRESETS["paper"].methods and "zo-squash" in figures.FIGURES["optimizers"]
assert tables.label("zo-squash", "lora") == "ZO-Squash (LoRA)"
model = nn.Linear(2, 2)
methods.build("zo-squash", model, {"lr": 1e-3}, seed=1, batch_size=4, steps=9).step(lambda: model(torch.ones(2)).sum())
assert "ZOSquash" in counts.State.params[0] and counts.count("ZOSquash")["losses"] == 2 * counts.STEPS
"""


def test_a_file_and_an_entry_and_it_is_everywhere(tmp_path):
    for name in ("helene", "synthetic", "llm_bench", "benchmarks", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("*.jsonl"))
    page = (ROOT / "docs/adding_an_optimizer.md").read_text(encoding="utf-8")
    file, entry = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "helene/optimizers/squash.py").write_text(file, encoding="utf-8")
    table = tmp_path / "helene/methods.py"
    text = table.read_text(encoding="utf-8")
    table.write_text(
        text.replace("\n)\n\n\ndef compared", f"\n{entry.rstrip()},\n)\n\n\ndef compared"), encoding="utf-8"
    )
    done = subprocess.run(
        [sys.executable, "-c", SEEN],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_every_public_optimizer_has_one_entry():
    files = {p.stem for p in (ROOT / "helene/optimizers").glob("*.py")} - {"__init__"}
    modules = [__import__(f"helene.optimizers.{name}", fromlist=[name]) for name in files]
    classes = {
        c.__name__
        for m in modules
        for c in vars(m).values()
        if isinstance(c, type) and issubclass(c, Base) and c.__module__ == m.__name__ and not c.__name__.startswith("_")
    }
    assert sorted(classes - {"Base", "ZerothOrder", "FirstOrder"}) == sorted(entry.cls for entry in ENTRIES)
    assert {entry.module for entry in ENTRIES} <= files
    for field in ("cls", "name", "label"):
        assert len({getattr(entry, field) for entry in ENTRIES}) == len(ENTRIES)
    assert {entry.cls for entry in ENTRIES} < set(helene.__all__)


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_an_entry_says_what_its_class_does(method):
    entry, model = method.entry, quadratic(torch.float32).model
    optimizer = method.cls(model.named_parameters(), 0.1, **entry.arguments(batch_size=4, anneal_horizon=9))
    assert len(optimizer.state_names) == entry.state
    assert method.contract.momentum in (None, *optimizer.defaults)
    assert issubclass(method.cls, FirstOrder) != issubclass(method.cls, ZerothOrder)
    for name in entry.needs:
        given = {key: value for key, value in entry.arguments(batch_size=4, anneal_horizon=9).items() if key != name}
        with pytest.raises((TypeError, ValueError), match=name):
            method.cls(model.named_parameters(), 0.1, **given)
