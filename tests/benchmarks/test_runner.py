"""The gate on deterministic counts notices what it must and says what to do."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks import run


def test_counts_are_exact_and_step_counts_may_differ_by_one():
    base = {"counts.X.track_losses_of_20_steps['A']": 40, "scaling.S.track_steps['helene', '1x8']": 103.0}
    same = {"counts.X.track_losses_of_20_steps['A']": 40, "scaling.S.track_steps['helene', '1x8']": 104.0}
    assert run.differences(same, base) == []
    moved = {"counts.X.track_losses_of_20_steps['A']": 41, "scaling.S.track_steps['helene', '1x8']": 105.0}
    assert len(run.differences(moved, base)) == 2


def test_a_count_that_appears_or_vanishes_is_a_difference():
    assert run.differences({"a": 1}, {}) == ["a: None -> 1"]
    assert run.differences({}, {"a": 1}) == ["a: 1 -> None"]


@pytest.mark.parametrize(("count", "code"), [(40, 0), (60, 1)])
def test_the_check_names_the_count_and_the_way_out(monkeypatch, capsys, tmp_path, count, code):
    baseline = tmp_path / "baseline.json"
    baseline.write_text(json.dumps({"counts.X": 40}))
    monkeypatch.setattr(run, "BASELINE", baseline)
    monkeypatch.setattr(run, "deterministic", lambda: {"counts.X": count})
    monkeypatch.setattr(sys, "argv", ["run", "--check"])
    assert run.main() == code
    message = capsys.readouterr().err
    assert ("counts.X: 40 -> 60" in message and "--accept" in message) == bool(code)


def test_every_benchmark_class_is_found():
    names = {suite.__name__ for suite in run.suites()}
    assert {"OptimizerStep", "State", "Step", "StepOverFloor", "StepsToTarget", "Exponents", "Against"} <= names
