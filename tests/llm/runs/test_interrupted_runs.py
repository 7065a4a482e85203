"""Runs that are killed, damaged, or replayed from what they left."""

import dataclasses
import math
import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from small_runs import comparable, opt, result_of

from helene.lab.runs.store import Store, StoreError, config_key
from llm_bench.runs.environment import resolved
from llm_bench.runs.meters import Stopwatch
from llm_bench.runs.run import run
from llm_bench.runs.session import session
from llm_bench.runs.training.checkpoint import Folder
from llm_bench.runs.training.loop import Training


def _run_until_the_first_save(config, env):
    """Waits to be killed there, so that it cannot end before."""
    save = Training._save

    def save_and_wait(training):
        save(training)
        time.sleep(120)

    Training._save = save_and_wait
    run(config, env)


@pytest.mark.slow
def test_a_run_goes_on_after_sigkill_to_the_same_bits(env, tmp_path):
    asked = opt(method="helene", tuning="full", lr=1e-4, hyper={"interval": 3}, steps=45, eval_every=15)
    config = resolved(asked, env)
    expected = result_of(config, env)
    often = dataclasses.replace(env, work=str(tmp_path), save_seconds=0.0)
    state = tmp_path / config_key(config.to_dict()) / "state.pt"
    process = multiprocessing.get_context("spawn").Process(
        target=_run_until_the_first_save, args=(config.to_dict(), often)
    )
    process.start()
    deadline = time.monotonic() + 60
    while not state.is_file() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    saved = torch.load(state, weights_only=True)["progressed"]["step"]
    assert 0 < saved < 45
    opened = session(config, often)
    training = Training(config, opened, Folder(often.work, config_key(config.to_dict())))
    assert training._restore()
    assert training.state.step == saved
    found = run(config.to_dict(), often)
    found.pop("trajectory_bytes")
    expected.pop("trajectory_bytes")
    assert comparable(found) == comparable(expected)
    assert not state.exists(), "a finished run leaves nothing under way"
    assert (tmp_path / "trajectories").is_dir()


def test_a_saved_run_goes_on_in_the_same_process_too(env, tmp_path):
    """Also methods with gradients, on a CPU, whose best weights are a copy, and whose c no trajectory keeps."""
    methods = ("ft-adam", {"eps": None}), ("helene-own-batch", {"lr": 1e-4}), ("helene-backprop", {"lr": 1e-4})
    for config in (opt(method=method, **more) for method, more in methods):
        expected = result_of(config, env)
        often = dataclasses.replace(env, work=str(tmp_path), save_seconds=0.0)
        wanted = resolved(config, often)
        opened = session(wanted, often)
        interrupted = Training(wanted, opened, Folder(often.work, config_key(wanted.to_dict())))
        interrupted._look()
        interrupted._watch = Stopwatch(torch.device("cpu"))
        interrupted._steps(4, math.inf)
        interrupted._look()
        interrupted._steps(6, math.inf)
        interrupted._save()
        found = run(wanted.to_dict(), often)
        for result in (found, expected):
            result.pop("trajectory_bytes")
        assert comparable(found) == comparable(expected)


@pytest.mark.parametrize("saved", [None, {"progressed": {"step": 3, "of_another_version": 1}, "slopes": [{}, 0, 0.0]}])
def test_a_save_that_cannot_be_read_begins_the_run_anew(saved, env, tmp_path):
    config = resolved(opt(), env)
    folder = tmp_path / config_key(config.to_dict())
    folder.mkdir()
    if saved is None:
        (folder / "state.pt").write_bytes(b"torn")
    else:
        torch.save(saved, folder / "state.pt")
    result = result_of(config, env, work=str(tmp_path))
    expected = result_of(config, env)
    result.pop("trajectory_bytes"), expected.pop("trajectory_bytes")
    assert comparable(result) == comparable(expected)


def test_a_full_disk_is_one_clear_error(tmp_path, monkeypatch):
    def full(*_):
        raise RuntimeError("PytorchStreamWriter failed writing file: No space left on device")

    monkeypatch.setattr("torch.save", full)
    with pytest.raises(ValueError, match=r"cannot write .*No space left.*what was finished is in the store"):
        Folder(str(tmp_path), "k").save("state.pt", {})
    assert not list(Path(tmp_path).rglob("*.partial"))


def test_two_sweeps_on_one_store_are_refused(tmp_path):
    with Store(tmp_path / "s.sqlite"), pytest.raises(StoreError, match="is being written by process"):
        Store(tmp_path / "s.sqlite")


def test_a_trajectory_is_kept_beside_the_store_and_replays(env, tmp_path):
    from helene.steps.trajectory import Trajectory
    from llm_bench.runs import methods
    from llm_bench.runs.training.checkpoint import weights

    config = resolved(opt(lr=1e-3), env)
    result = result_of(config, env, work=str(tmp_path))
    (path,) = (tmp_path / "trajectories").glob("*.npz")
    assert path.stat().st_size == result["trajectory_bytes"]
    opened = session(config, env)
    opened.reset(config.seed)
    optimizer = methods.build("mezo", opened.model.module, config.hyper_parameters(), seed=0, batch_size=4, steps=12)
    Trajectory.load(path).replay(optimizer)
    replayed = weights(opened.model.module)
    training = Training(config, opened, Folder(None, ""))
    training.run()
    assert all(torch.equal(a, replayed[name]) for name, a in weights(opened.model.module).items())


def test_a_trajectory_that_cannot_be_written_costs_no_result(env, tmp_path, monkeypatch):
    expected = result_of(opt(), env)

    def full(self, path):
        raise OSError("no space left")

    monkeypatch.setattr("helene.steps.trajectory.Trajectory.save", full)
    found = result_of(opt(), env, work=str(tmp_path))
    assert found["message"] == f"{expected['message']}; its trajectory was not kept: no space left"
    assert found["trajectory_bytes"] is None
    assert comparable(found)["test"] == comparable(expected)["test"]


def test_a_work_folder_that_cannot_be_written_is_told_before_the_run(env, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(Training, "run", lambda _: pytest.fail("the run was begun"))
    for work in (tmp_path / "file", tmp_path / "file" / "work", "/proc/work"):
        with pytest.raises(ValueError, match=f"cannot write to {work}, where .* choose another folder by --work"):
            result_of(opt(), env, work=str(work))
