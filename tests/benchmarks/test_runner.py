"""The gate on deterministic counts notices what it must and says what to do."""

from __future__ import annotations

import importlib
import itertools
import json
import sys

import pytest

from benchmarks import common, counts, gpu, launches, llm, run, step


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
    assert {"OptimizerStep", "State", "Step", "OverFloor", "ToTarget", "Exponents", "Against", "Peak"} <= names
    assert {suite.__module__ for suite in run.suites(["gpu", "step"])} == {"benchmarks.gpu", "benchmarks.step"}


def test_benchmarks_name_their_parameters_and_units():
    for suite in run.suites():
        assert len(getattr(suite, "params", ())) == len(getattr(suite, "param_names", ())), suite
        for name in dir(suite):
            if name.startswith("track_"):
                assert getattr(getattr(suite, name), "unit", getattr(suite, "unit", None)), name
                assert suite.version == "1", name


def test_each_timed_step_has_its_multiple_of_the_floor():
    assert step.OverFloor.params == step.Step.params
    assert step.OtherOverFloor.params == step.OtherStep.params
    assert {*step.TIMED, *step.OTHERS} == set(common.METHODS)
    assert set(step.STATE_TRAFFIC) == set(step.TIMED)
    assert gpu.Step.track_step_over_two_forwards.unit == "ratio"


@pytest.mark.parametrize("method", step.TIMED)
@pytest.mark.parametrize("dtype", step.DTYPES)
def test_a_multiple_of_the_floor_is_measured_for_every_step(method, dtype):
    assert step.step_over_floor(method, 1 << 12, dtype, repeats=1) > 0


@pytest.mark.parametrize("method", ["FZOO", "SGD"])
def test_a_multiple_of_its_own_floor_is_measured_for_every_other_step(method):
    assert step.step_over_own_floor(method, 1 << 12, repeats=1) > 0


def test_numbers_made_of_words_are_counted_once():
    """FZOO's 8 directions are drawn twice, for the copies and for the update: 320 in 20 steps."""
    from helene import noise

    with counts.random_calls() as calls:
        noise.signs(0, 1, 0, 1, 0, 5)
        noise.normal(0, 1, 0, 1, 0, 7)
    assert [draw(*args, **kwargs).numel() for draw, args, kwargs in calls] == [5, 7]
    assert counts.count("FZOO")["random"] == 320


def test_nothing_is_skipped_on_this_commit():
    """A subject that moved would otherwise be skipped for ever: everything but the GPU's has its subject here."""
    for suite in run.suites():
        if not issubclass(suite, common.Cached) and not hasattr(suite, "setup_cache") and hasattr(suite, "setup"):
            for key in itertools.product(*getattr(suite, "params", ())):
                bench = suite()
                bench.setup(*key)
                getattr(bench, "teardown", lambda: None)()
    for method, dtype in itertools.product(common.METHODS, ("float32", "bfloat16")):
        common.make(method, [common.parameter(8)], state_dtype=dtype, rounding="stochastic")
    for kind in llm.Examples.params[0]:
        model, examples = llm.tiny(kind)
        assert len(examples) == llm.NUM_EXAMPLES
        assert model.kind == kind


def test_an_option_that_a_commit_lacks_is_skipped():
    with pytest.raises(NotImplementedError, match="wings"):
        common.make("MeZO", [common.parameter(8)], wings=2)
    with pytest.raises(ValueError, match="eps"):
        common.make("MeZO", [common.parameter(8)], eps=-1.0)


def test_what_a_commit_lacks_is_skipped_and_what_the_environment_lacks_is_not():
    with pytest.raises(NotImplementedError, match=r"helene\.flying"), common.subject():
        importlib.import_module("helene.flying")
    with pytest.raises(NotImplementedError, match="Flying"), common.subject():
        from helene import Flying  # noqa: F401
    with pytest.raises(ModuleNotFoundError), common.subject():
        importlib.import_module("a_package_that_is_not_there")


class Mixed:
    """One benchmark for each outcome."""

    params = (["fine", "absent", "broken"],)
    param_names = ("what",)

    def setup_cache(self):
        return common.values(self.value, ((what,) for what in self.params[0]))

    def value(self, what):
        if what == "fine":
            return 1
        raise NotImplementedError("not yet") if what == "absent" else ZeroDivisionError("by zero")

    setup = common.Cached.setup

    def track_value(self, cache, what):
        return cache[(what,)]


def test_skips_and_failures_are_rows_and_a_failure_is_an_exit_code(monkeypatch, tmp_path):
    monkeypatch.setattr(run, "suites", lambda only=(): [Mixed])
    monkeypatch.setenv("HELENE_COMMIT", "abc")
    monkeypatch.setattr(sys, "argv", ["run", "--jsonl", str(tmp_path / "rows.jsonl")])
    assert run.main() == 1
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["value"] for row in rows] == [1, "skipped: not yet", "failed: RuntimeError: ZeroDivisionError: by zero"]
    assert all(row["provenance"]["commit"] == "abc" for row in rows)


def test_a_count_that_fails_is_a_difference():
    assert run.differences({"a": "failed: x"}, {"a": 1}) == ["a: 1 -> failed: x"]


def test_a_count_that_fails_is_not_accepted(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(run, "BASELINE", tmp_path / "baseline.json")
    monkeypatch.setattr(run, "deterministic", lambda: {"a": "failed: x"})
    monkeypatch.setattr(sys, "argv", ["run", "--accept"])
    assert run.main() == 1
    assert "a: failed: x" in capsys.readouterr().err
    assert not (tmp_path / "baseline.json").exists()


def test_an_unknown_module_is_refused(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("HELENE_COMMIT", "abc")
    monkeypatch.setattr(sys, "argv", ["run", "--jsonl", str(tmp_path / "x"), "--only", "gpus"])
    with pytest.raises(SystemExit):
        run.main()
    assert "gpus" in capsys.readouterr().err


def test_launches_are_counted_with_what_the_kernels_are_given_today():
    """The benchmark's stand-ins take the launches' arguments; the count is the committed one."""
    known = json.loads(run.BASELINE.read_text(encoding="utf-8"))
    assert (
        launches.count_launches("MeZO", "at once")
        == known["launches.Launches.track_launches_of_a_step['MeZO', 'at once']"]
    )
