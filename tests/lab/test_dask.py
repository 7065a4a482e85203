"""Sweeps on a Dask cluster: the same records, a dead worker costs its cell, a scheduler that is gone one sentence."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from helene.lab.runs.store import Store
from helene.lab.sweeps import slurm
from helene.lab.sweeps.dask_executor import ClusterError, DaskExecutor
from helene.lab.sweeps.executors import InlineExecutor
from helene.lab.sweeps.sweep import sweep

pytest.importorskip("distributed")
HERE = Path(__file__).parent
# A cluster in a process of its own, as a reader would have it: two workers of one thread that offer a GPU each.
CLUSTER = """
import sys, time
from distributed import LocalCluster
if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=None,
                      resources={"GPU": 1}) as cluster:
        print(cluster.scheduler_address, flush=True)
        time.sleep(300)
"""


@pytest.fixture(scope="module")
def cells():
    """The module of runs, importable here; the workers find it by PYTHONPATH."""
    patch = pytest.MonkeyPatch()
    patch.syspath_prepend(str(HERE))
    import lab_cells

    yield lab_cells
    patch.undo()


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "s.sqlite") as opened:
        yield opened


class Cluster:
    """The address of a cluster, and the way to end it at once."""

    def __init__(self, folder, allowed_failures):
        script = folder / "cluster.py"
        script.write_text(CLUSTER)
        environment = {
            **os.environ,
            "PYTHONPATH": str(HERE),
            "OMP_NUM_THREADS": "1",
            "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": str(allowed_failures),
        }
        self.process = subprocess.Popen(
            [sys.executable, script],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
            start_new_session=True,
        )
        self.address = self.process.stdout.readline().strip()
        assert self.address.startswith("tcp://")

    def kill(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    made = Cluster(tmp_path_factory.mktemp("cluster"), allowed_failures=1)
    yield made
    made.kill()


def quiet(configs, run, store, executor):
    return sweep("e", configs, run, store, provenance={"command": "c"}, progress=False, executor=executor)


def starts(log):
    """(cell, process) of every start that the cells logged."""
    return [tuple(map(int, line.split())) for line in log.read_text().splitlines()] if log.exists() else []


def wait_until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)


def test_the_records_are_those_of_one_process(cluster, cells, store, tmp_path):
    configs = [{"i": i} for i in range(12)]
    with DaskExecutor(cluster.address) as executor:
        far = quiet(configs, cells.square, store, executor)
        assert quiet(configs, cells.square, store, executor) == far, "nothing runs twice"
    with Store(tmp_path / "here.sqlite") as other:
        near = quiet(configs, cells.square, other, InlineExecutor())
    assert [r.comparable() for r in far] == [r.comparable() for r in near]
    assert far[0].provenance["command"] == "c"
    assert far[0].provenance["versions"]["python"] == sys.version.split()[0], "of the worker"


def test_a_killed_worker_costs_its_cell_alone_and_that_is_run_again(cluster, cells, store, tmp_path):
    log = tmp_path / "log"
    configs = [{"i": i, "sleep": 0.4, "log": str(log)} for i in range(6)]

    def strike():
        wait_until(lambda: starts(log))
        os.kill(starts(log)[0][1], signal.SIGKILL)

    killer = threading.Thread(target=strike)
    killer.start()
    with DaskExecutor(cluster.address) as executor:
        records = quiet(configs, cells.square, store, executor)
    killer.join()
    assert [r.result["steps"] for r in records] == [i**2 for i in range(6)]
    ran = [i for i, _ in starts(log)]
    assert ran.count(starts(log)[0][0]) == 2
    assert sorted(set(ran)) == list(range(6))
    assert len(ran) == 7


def test_a_result_that_dies_with_its_worker_is_made_again(cluster, cells, store, tmp_path):
    """The worker dies once its cell has ended and before the result is fetched."""
    log, killed = tmp_path / "log", []

    class Late(DaskExecutor):
        def _outcome(self, future, index, since):
            if not killed:
                killed.append(index)
                os.kill(starts(log)[0][1], signal.SIGKILL)
                wait_until(lambda: future.status == "lost")
            return super()._outcome(future, index, since)

    with Late(cluster.address) as executor:
        (record,) = quiet([{"i": 3, "sleep": 0.5, "log": str(log)}], cells.square, store, executor)
    assert record.result["steps"] == 9
    assert [cell for cell, _ in starts(log)] == [3, 3]


def test_a_cell_that_kills_every_worker_is_recorded_and_the_others_are_done(cluster, cells, store, tmp_path):
    mended = tmp_path / "mended"
    hows = ["kill", "fine", "raise", "fine", "object", "fine"]
    configs = [{"i": i, "how": how, "mended": str(mended)} for i, how in enumerate(hows)]
    with DaskExecutor(cluster.address, {"GPU": 1}) as executor:
        records = quiet(configs, cells.unhappy, store, executor)
        assert [r.failed for r in records] == [how != "fine" for how in hows]
        assert "killed" in records[0].result["message"]
        assert records[2].result["message"].startswith("ZeroDivisionError: one over nothing (lab_cells.py:")
        mended.touch()
        again = quiet(configs, cells.unhappy, store, executor)
    assert not any(r.failed for r in again)
    assert len(store) == len(configs)


def test_places_are_those_that_have_what_a_cell_needs(cluster):
    with DaskExecutor(cluster.address, {"GPU": 1}) as some, DaskExecutor(cluster.address, {"GPU": 2}) as none:
        wait_until(lambda: some.slots() == 2)
        assert none.slots() == 0


def test_a_scheduler_that_goes_away_keeps_what_is_finished(cells, store, tmp_path):
    made, log = Cluster(tmp_path, allowed_failures=1), tmp_path / "log"
    configs = [{"i": i, "sleep": 0.1, "log": str(log)} for i in range(200)]

    def strike():
        wait_until(lambda: len(starts(log)) >= 5)
        made.kill()

    killer = threading.Thread(target=strike)
    killer.start()
    with (
        DaskExecutor(made.address) as executor,
        pytest.raises(ClusterError, match="is gone; finished cells are safe"),
    ):
        quiet(configs, cells.square, store, executor)
    killer.join()
    assert 3 <= len(store) < 200
    before = len(store)
    quiet(configs[:8], cells.square, store, InlineExecutor())
    assert len(store) >= max(before, 8)


def test_a_scheduler_that_never_was():
    with pytest.raises(ValueError, match=r"no Dask scheduler answers at tcp://127.0.0.1:9 .*leave --scheduler out"):
        DaskExecutor("tcp://127.0.0.1:9", timeout_seconds=0.5)


def test_the_jobs_of_a_slurm_cluster():
    pytest.importorskip("dask_jobqueue")
    settings = slurm.Slurm(jobs=4, cores=8, memory="16GiB", walltime="02:00:00", queue="cpu", account="me")
    lines = slurm.job_script(settings, "tcp://node1:8786").splitlines()
    wanted = ["-J helene", "-p cpu", "-A me", "-n 1", "--cpus-per-task=8", "--mem=16G", "-t 02:00:00"]
    assert lines[0] == "#!/usr/bin/env bash"
    assert [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH")] == wanted
    assert "export OMP_NUM_THREADS=1" in lines
    worker = lines[-1].split() if lines[-1] else lines[-2].split()
    assert "tcp://node1:8786" in worker
    assert worker[worker.index("--nthreads") + 1] == "1"
    assert worker[worker.index("--nworkers") + 1] == "8"


def test_a_slurm_job_with_a_gpu_is_one_worker_that_offers_it():
    pytest.importorskip("dask_jobqueue")
    script = slurm.job_script(slurm.Slurm(cores=8, gpu=True, extra=("--exclusive",)))
    assert "#SBATCH --gpus-per-node=1" in script
    assert "#SBATCH --exclusive" in script
    assert "#SBATCH --cpus-per-task=8" in script
    assert "--nthreads 1 " in script
    assert "--nworkers" not in script or "--nworkers 1 " in script
    assert "--resources GPU=1" in script


def test_the_slurm_command(capsys, monkeypatch):
    pytest.importorskip("dask_jobqueue")
    assert slurm.main(["--script", "--queue", "q"]) == 0
    assert "#SBATCH -p q" in capsys.readouterr().out
    assert slurm.main(["--jobs", "0"]) == 2
    assert "jobs must be at least 1, got 0" in capsys.readouterr().err
    monkeypatch.setenv("PATH", "")
    assert slurm.main([]) == 2
    assert "no sbatch here" in capsys.readouterr().err
