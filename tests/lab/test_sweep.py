"""Sweeps: what is done stays done, what fails costs its cell alone, and no process is left behind."""

from __future__ import annotations

import io
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helene.lab.runs.store import Record, Store, StoreError, config_key
from helene.lab.sweeps.executors import InlineExecutor, Outcome, ProcessExecutor, limit_torch_threads
from helene.lab.sweeps.progress import Progress, readable_seconds
from helene.lab.sweeps.sweep import sweep
from tests.lab.store import kills

HERE = Path(__file__).parent
FACTS = {"commit": None}


@pytest.fixture
def cells(monkeypatch):
    """The module of runs, importable here and in spawned workers."""
    monkeypatch.syspath_prepend(str(HERE))
    import lab_cells

    return lab_cells


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "s.sqlite") as opened:
        yield opened


def quiet(experiment, configs, run, store, **options):
    return sweep(experiment, configs, run, store, provenance=FACTS, progress=False, **options)


def starts(log):
    """(cell, process) of every start that the cells logged."""
    return [tuple(map(int, line.split())) for line in log.read_text().splitlines()] if log.exists() else []


def gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def wait_until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)


@pytest.mark.parametrize("executor", [InlineExecutor(), None], ids=["inline", "processes"])
def test_records_come_in_the_order_of_configs_and_are_not_run_twice(store, cells, tmp_path, executor):
    log = tmp_path / "log"
    configs = [{"i": i, "log": str(log)} for i in (3, 1, 2, 1)]
    records = quiet("e", configs, cells.square, store, jobs=2, executor=executor)
    assert [r.config["i"] for r in records] == [3, 1, 2, 1]
    assert [r.result["steps"] for r in records] == [9, 1, 4, 1]
    assert records[0].result["miss"] == float("inf")
    assert records[0].result["run_seconds"] >= 0
    assert records[0].provenance == FACTS
    assert sorted(i for i, _ in starts(log)) == [1, 2, 3]
    again = quiet("e", [*configs, {"i": 4, "log": str(log)}], cells.square, store, executor=executor)
    assert again[:4] == records
    assert sorted(i for i, _ in starts(log)) == [1, 2, 3, 4]
    assert store.records("e") == sorted(set_of(again), key=lambda r: r.key)


def set_of(records):
    return list({r.key: r for r in records}.values())


def test_equal_configs_of_two_experiments_are_two_runs(store, cells):
    quiet("a", [{"i": 1}], cells.square, store, executor=InlineExecutor())
    quiet("b", [{"i": 1}], cells.square, store, executor=InlineExecutor())
    assert store.experiments() == {"a": 1, "b": 1}


def test_longest_expected_starts_first(store, cells, tmp_path):
    log = tmp_path / "log"
    configs = [{"i": i, "log": str(log)} for i in (2, 9, 4, 9, 7)]
    quiet("e", configs, cells.square, store, executor=InlineExecutor(), cost=lambda config: config["i"])
    assert [i for i, _ in starts(log)] == [9, 7, 4, 2]


FAILURES = {
    "raise": "ZeroDivisionError: one over nothing (lab_cells.py:",
    "kill": "worker process was killed by SIGKILL",
    "exit": "worker process ended with exit code 7",
    "list": "TypeError: run must return a dict, it returned list",
    "object": "ValueError: result.steps is a object, which has no JSON form",
    "lambda": "the result cannot be sent",
}


def test_what_fails_costs_its_cell_and_is_tried_again(store, cells, tmp_path):
    mended = tmp_path / "mended"
    configs = [{"i": i, "how": how, "mended": str(mended)} for i, how in enumerate([*FAILURES, "fine", "fine too"])]
    records = quiet("e", configs, cells.unhappy, store, jobs=2)
    for record, said in zip(records, FAILURES.values(), strict=False):
        assert record.failed
        assert record.result["message"].startswith(said), record.result
        assert "\n" not in record.result["message"]
    assert [r.result["status"] for r in records[-2:]] == ["diverged", "diverged"]
    mended.touch()
    again = quiet("e", configs, cells.unhappy, store, jobs=2)
    assert [r.result["status"] for r in again] == ["reached"] * len(FAILURES) + ["diverged"] * 2
    assert len(store) == len(configs)


def test_workers_have_one_thread_and_do_not_load_torch_for_it(store, cells, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    result = quiet("e", [{}], cells.environment, store)[0].result
    assert (result["omp"], result["torch"]) == ("1", False)
    assert os.environ["OMP_NUM_THREADS"] == "5"


def test_torch_gets_one_thread_when_it_is_loaded(monkeypatch):
    class Fake:
        threads = 4

        def get_num_threads(self):
            return self.threads

        def set_num_threads(self, count):
            self.threads = count

    monkeypatch.setitem(sys.modules, "torch", Fake())
    limit_torch_threads()
    assert sys.modules["torch"].threads == 1


@pytest.mark.parametrize("jobs", [0, -1, 1.5, True])
def test_bad_jobs(store, cells, jobs):
    with pytest.raises(ValueError, match=f"jobs must be an integer of at least 1, got {jobs!r}"):
        quiet("e", [{"i": 1}], cells.square, store, jobs=jobs)


def test_bad_config_and_bad_run(store, cells):
    with pytest.raises(ValueError, match=r"configs\[1\].i is a set"):
        quiet("e", [{"i": 1}, {"i": {2}}], cells.square, store)
    with pytest.raises(ValueError, match="top level of a module"):
        quiet("e", [{"i": 1}], lambda config: config, store)
    assert len(store) == 0


def test_workers_that_cannot_start_say_so(tmp_path):
    """A script without the guard: each worker runs the script again, and dies of it before it is ready."""
    script = tmp_path / "unguarded.py"
    script.write_text(
        "from helene.lab.runs.store import Store\nfrom helene.lab.sweeps.sweep import sweep\n"
        "def run(config): return {}\n"
        f"store = Store({str(tmp_path / 's.sqlite')!r})\n"
        "sweep('e', [{'i': 1}], run, store, progress=False)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "needs `if __name__ == '__main__':`" in done.stderr.splitlines()[-1]


def test_a_record_that_the_report_cannot_read_is_run_again(store, cells):
    config = {"i": 3}
    store.put(Record.of("s", config, {"status": "reached"}))
    with pytest.warns(UserWarning, match=r"record s/.* cannot be read \(KeyError: 'run_seconds'\); its run is made"):
        (record,) = quiet(
            "s", [config], cells.square, store, executor=InlineExecutor(), reads=lambda r: r.result["run_seconds"]
        )
    assert record.result["run_seconds"] >= 0


def test_no_cells(store, cells):
    assert quiet("e", [], cells.square, store) == []


def test_full_disk_in_mid_sweep_keeps_the_finished(store, cells):
    pages = store._database.connection.execute("PRAGMA page_count").fetchone()[0]
    store._database.connection.execute(f"PRAGMA max_page_count={pages + 3}")
    with pytest.raises(StoreError, match="free some space"):
        quiet("e", [{"i": i, "pad": "x" * 500} for i in range(200)], cells.square, store, jobs=2)
    done = len(store)
    assert 0 < done < 200
    store._database.connection.execute("PRAGMA max_page_count=100000")
    assert len(quiet("e", [{"i": i, "pad": "x" * 500} for i in range(200)], cells.square, store, jobs=2)) == 200


def start_script(store, log, count, **options):
    return subprocess.Popen(
        [sys.executable, HERE / "lab_cells.py", store, log, str(count)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_killed_at_any_moment_it_goes_on_where_it_stopped(tmp_path, cells):
    """SIGKILL again and again; then the records equal those of an undisturbed sweep, and no finished cell ran twice."""
    count, path, log = 16, tmp_path / "killed.sqlite", tmp_path / "log"
    rng = random.Random(1)
    finished: set[str] = set()
    for _ in range(4):
        process = start_script(path, log, count)
        goal = len(starts(log)) + rng.randint(1, 4)
        wait_until(lambda: len(starts(log)) >= goal or process.poll() is not None)  # noqa: B023
        time.sleep(rng.random() * 0.1)
        before = len(starts(log))
        process.kill()
        process.communicate()
        wait_until(lambda: all(gone(pid) for _, pid in starts(log)))
        with Store(path, read_only=True) as store:
            now = {r.key for r in store.records()}
        assert finished <= now
        assert len(starts(log)) <= before + 2  # the cells in flight end; no worker takes another
        finished = now
    assert 0 < len(finished) < count
    ran_before = len(starts(log))
    process = start_script(path, log, count)
    assert process.wait(120) == 0, process.stderr.read()
    process.communicate()
    assert len(starts(log)) - ran_before == count - len(finished)
    with Store(tmp_path / "calm.sqlite") as calm, Store(path) as killed:
        configs = [{"i": i, "sleep": 0.05, "log": str(log)} for i in range(count)]
        quiet(cells.EXPERIMENT, configs, cells.square, calm, jobs=2)
        assert [r.comparable() for r in killed.records()] == [r.comparable() for r in calm.records()]


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_interrupt_leaves_cleanly(tmp_path):
    path, log = tmp_path / "s.sqlite", tmp_path / "log"
    process = start_script(path, log, 1000, start_new_session=True)
    wait_until(lambda: len(starts(log)) >= 4)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode in (1, -signal.SIGINT)
    assert said.count("Traceback") == 1  # the parent's; the workers say nothing
    assert "KeyboardInterrupt" in said.splitlines()[-1]
    wait_until(lambda: all(gone(pid) for _, pid in starts(log)))
    with Store(path) as store:  # the lock is free
        assert len(store) >= 2


def test_another_executor_needs_one_method(store, cells):
    class Backwards:
        def outcomes(self, run, configs):
            for index in reversed(range(len(configs))):
                yield Outcome(index, run(configs[index]), None, 0.5)

    records = quiet("e", [{"i": i} for i in range(3)], cells.square, store, executor=Backwards())
    assert [r.result["steps"] for r in records] == [0, 1, 4]
    assert records[0].result["run_seconds"] == 0.5
    assert [r.key for r in records] == [config_key({"i": i}) for i in range(3)]


def test_closing_the_outcomes_ends_the_workers(cells, tmp_path):
    log = tmp_path / "log"
    outcomes = ProcessExecutor(2).outcomes(
        cells.square, [{"i": i, "sleep": 60.0 * i, "log": str(log)} for i in range(3)]
    )
    assert next(outcomes).result["steps"] == 0
    start = time.monotonic()
    outcomes.close()
    assert time.monotonic() - start < 30  # not the minute that the cell would take
    wait_until(lambda: all(gone(pid) for _, pid in starts(log)))


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_judges_time_left_by_cost(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("helene.lab.sweeps.progress.time.monotonic", lambda: now[0])
    progress = Progress("e", 3, 10.0, show=False)
    assert progress.seconds_left() is None
    now[0] = 103.0
    progress.advance(6.0)
    assert progress.seconds_left() == pytest.approx(2.0)  # 3 s for 6 of 10


def test_progress_speaks_on_stderr_alone(monkeypatch, capsys):
    with Progress("e", 2, 2.0, skipped=3) as progress:
        progress.advance(1.0)
        progress.advance(1.0, failed=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[0] == "e (3 cells in the store already): 2 cells to run"
    assert err.splitlines()[1].startswith("e: 2/2 cells, 1 failed in 0 s")
    monkeypatch.setattr(sys, "stderr", Terminal())
    with Progress("e", 2, 2.0) as progress:
        progress.advance(1.0)
    assert "1/2 cells" in sys.stderr.getvalue()


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.4, "0 s"), (59.4, "59 s"), (185, "3 min 05 s"), (7800, "2 h 10 min"), (-1, "0 s")]
)
def test_durations_for_people(seconds, said):
    assert readable_seconds(seconds) == said


def test_kills_lose_nothing(tmp_path):
    """Three of the fifty that `make kills` makes."""
    assert kills.attack(tmp_path, 3) == (3, 32)
