"""Successive halving, from tuning runs made by hand."""

import dataclasses

import pytest

from helene.lab.runs.records import write_jsonl
from helene.lab.runs.store import Record
from llm_bench.protocol import plan
from llm_bench.protocol.plan import Cell
from llm_bench.protocol.presets import get_preset
from tools import halving

ALL = get_preset("all")


def grid(fingerprint="a", lost=False):
    config = plan.tuning_runs(ALL, Cell("causal", "sst2", "mezo", "full"), "m", "cuda")[0]
    for place in range(5):
        curve = {"step": [0, 500, 1000, 2000], "dev_metric": [0.5] * 3 + [0.5 + place / 10], "dev_loss": [0.7] * 4}
        result = {"status": "out_of_budget", "dev": {"metric": curve["dev_metric"][-1]}, "curve": curve}
        if lost and place == 4:
            result = {"status": "non_finite", "dev": None, "curve": {}}
        one = dataclasses.replace(config, lr=10.0 ** (place - 7), fingerprint=fingerprint)
        yield Record.of("llm/all", one.to_dict(), result)


def test_a_run_without_a_look_at_dev_is_passed_over_and_two_models_are_not_mixed(tmp_path, monkeypatch):
    monkeypatch.setattr(halving, "ROWS", tmp_path)
    write_jsonl(tmp_path / "causal-sst2.jsonl", list(grid(lost=True)), "test")
    (cell,) = halving.cells()
    assert cell.whole == 1e-4
    write_jsonl(tmp_path / "causal-sst2.jsonl", [*grid(), *grid("b")], "test")
    with pytest.raises(ValueError, match=r"causal-sst2.jsonl has runs of 2 values of fingerprint, a and b"):
        halving.cells()
