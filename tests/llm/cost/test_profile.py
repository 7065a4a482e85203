"""Accounts of a step's time against closed forms, and the names of kernels that a GPU recorded."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch

from helene import MeZO
from helene import cli as helene_cli
from llm_bench.cost import host_time, step_profile, timeline
from llm_bench.cost.timeline import HostTimers, Interval, account

RECORDS = Path(timeline.__file__).parents[1] / "records"
GEMM, COPY = "nvjet_sm90_tst_128x128_64x6_2x1_v_bz_bias_TNT", "perturb"


def test_each_moment_counts_once() -> None:
    """Two steps of 50 µs: products 0-40, copies 30-60, nothing 60-70, update 70-90, an unknown kernel 90-100."""
    intervals = [
        Interval(GEMM, 0.0, 40.0),
        Interval(COPY, 30.0, 60.0),
        Interval("update", 70.0, 90.0),
        Interval("mystery", 90.0, 100.0),
    ]
    told = account(intervals, 2)
    assert told["step_seconds"] == pytest.approx(50e-6)
    expected = {"forward": 20e-6, "copies beside forward": 5e-6, "copies": 10e-6, "gap": 5e-6, "update": 10e-6}
    assert told["parts"] == pytest.approx(expected)
    assert sum(told["parts"].values()) == pytest.approx(told["step_seconds"])
    assert told["kinds"] == pytest.approx({"products": 20e-6, "copies": 15e-6, "update": 10e-6, "other": 5e-6})
    assert told["accounted"] == pytest.approx(0.9)
    assert account([], 1)["accounted"] == 0.0


def test_how_long_the_device_waits_for_an_update() -> None:
    """Two steps: 25 µs behind a forward that outlasts another, copies and transfers aside; none behind the second."""
    intervals = [
        Interval(GEMM, 0.0, 40.0),
        Interval(GEMM, 10.0, 20.0),
        Interval(COPY, 30.0, 50.0),
        Interval("Memcpy DtoH", 51.0, 52.0),
        Interval("update", 65.0, 90.0),
        Interval("update", 95.0, 99.0),  # of parameters of another dtype
        Interval(GEMM, 100.0, 140.0),
        Interval("update", 135.0, 150.0),
    ]
    assert timeline.until_update(intervals, 2) == pytest.approx(12.5e-6)
    assert timeline.until_update([], 1) == 0.0


PROFILES = [path for path in sorted(RECORDS.glob("engine/*.jsonl")) if '"part":"profile"' in path.read_text()]


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_kernels_that_a_gpu_ran_have_names(path: Path) -> None:
    """Of the kernels with most time in a committed profile, those without a name take under 1 %."""
    known, unknown = 0.0, 0.0
    for line in path.read_text().splitlines():
        record = json.loads(line)
        if record.get("config", {}).get("part") == "profile":
            for kernel in record["result"]["kernels"]:
                if timeline.kind(kernel["name"]) == "other":
                    unknown += kernel["seconds"]
                else:
                    known += kernel["seconds"]
    assert known > 0
    assert unknown < 0.01 * known


def test_timers_count_for_what_was_entered_last() -> None:
    timers = HostTimers()
    inner = timers.wrap("inner", lambda: time.sleep(0.02))

    def body() -> None:
        time.sleep(0.01)
        inner()
        time.sleep(0.01)

    start = time.perf_counter()
    timers.wrap("outer", body)()
    whole = time.perf_counter() - start
    assert sum(timers.seconds.values()) == pytest.approx(whole, rel=0.05)
    assert timers.seconds["outer"] >= 0.02
    assert timers.seconds["inner"] >= 0.02


def test_a_step_on_the_cpu_is_accounted_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The measure: 95 % by name. Parts add up to the step, floors are there for each, JSON holds it all."""
    pytest.importorskip("transformers")
    file = tmp_path / "p.json"
    options = ["--shape", "opt-tiny", "--batch", "8x64", "--method", "helene", "--steps", "2"]
    with pytest.warns(UserWarning, match="no CUDA device"):
        assert helene_cli.main(["llm", "profile", *options, "--json", str(file)]) == 0
    said, found = capsys.readouterr().out, json.loads(file.read_text())
    assert found.pop("provenance")["command"]
    assert set(found) == {"helene"}
    for told in found.values():
        assert set(told["parts"]) == {"noise", "forward", "copies", "update", "host"}
        assert sum(told["parts"].values()) == pytest.approx(told["step_seconds"], rel=0.02)
        assert told["accounted"] > 0.9  # of a machine that may be busy; idle ones show 0.97
        assert {"noise", "forward", "copies", "update"} <= set(told["floors"])
        assert told["mode"] == "eager"
    assert "of the step by name" in said
    assert "floor ms" in said


def test_what_was_wrapped_is_put_back() -> None:
    from helene import noise
    from helene.evaluation.blocks import Block

    before = noise.normal, Block.write
    with timeline.timed(HostTimers(), step_profile._host_parts()):
        assert noise.normal is not before[0]
        assert Block.write is not before[1]
    assert (noise.normal, Block.write) == before


def test_a_profile_on_a_cpu_says_first_how_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Forwards of 24 steps of each method, 1,024 tokens, 1.3e9 parameters, at 1 s for 2^30 multiply-adds."""
    monkeypatch.setattr(step_profile, "shape_profile", lambda *_: pytest.fail(capsys.readouterr().err))
    monkeypatch.setattr(step_profile, "_least", lambda *_: 1.0)
    text = r"steps of opt-1\.3b, 16x64 tokens, on a CPU: 33 h .* at least; fewer --steps"
    with pytest.raises(pytest.fail.Exception, match=text):
        helene_cli.main(["llm", "profile", "--shape", "opt-1.3b", "--method", "mezo", "helene"])


def test_the_hosts_time_of_a_step_is_told_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss that sleeps 2 ms has 4 ms of a step; all parts together are a step."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    called = []

    def make():
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))

        def loss() -> torch.Tensor:
            time.sleep(2e-3)
            called.append(id(model))
            return model(torch.ones(1, 3)).sum()

        return MeZO(model.named_parameters(), model=model).step, loss

    start = time.perf_counter()
    told = host_time.host_seconds(make, rounds=3, calls=2)
    whole = time.perf_counter() - start
    assert {len(seconds) for seconds in told.values()} == {3}
    three = (host_time.EAGER, host_time.STEP, host_time.BARE)
    parts = [sum(turn) for turn in zip(*(s for name, s in told.items() if name not in three), strict=True)]
    assert all(4e-3 <= forwards <= part for forwards, part in zip(told[host_time.FORWARDS], parts, strict=True))
    assert all(seconds >= 4e-3 for name in three for seconds in told[name])
    assert 2 * (sum(parts) + sum(seconds for name in three for seconds in told[name])) <= whole
    assert set(told) >= {"plan", "update", "launching copies", "looking what has moved", "waiting for the losses"}
    assert len(set(called)) == 2, "no optimizer steps the parameters of the other"


def test_a_run_is_profiled(toy_data: Path, tmp_path: Path) -> None:
    from llm_families import make

    from llm_bench.runs.config import RunConfig
    from llm_bench.runs.environment import environment, resolved
    from llm_bench.runs.session import close_sessions

    model = make("opt", layers=1)
    model.module.save_pretrained(tmp_path / "opt")
    model.tokenizer.save_pretrained(tmp_path / "opt")
    env = environment(toy_data, models={"opt": str(tmp_path / "opt")}, pretrained=False)
    options = {"lr": 1e-3, "steps": 3, "eval_every": 3, "batch_size": 4, "num_train": 24, "num_dev": 8, "num_test": 8}
    try:
        for method, eps in (("mezo", 1e-3), ("ft-adam", None)):
            config = RunConfig("opt", "causal", "sst2", method, eps=eps, **options)
            found = step_profile.run_profile(resolved(config, env), env, 3)
            assert found["parts"]["update"] > 0
            assert found["batch_seconds"] > 0
            assert 0 <= found["share_outside"] < 1
            assert "forward" in step_profile.shown(found)
    finally:
        close_sessions()
