"""A Dask cluster on SLURM for the sweeps: ``python -m helene.lab.sweeps.slurm --help``.

The cluster lives as long as that command does; sweeps use it by ``--scheduler ADDRESS``. One process with one thread
per core, so that a cell that dies takes no other along.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Slurm:
    """What is asked of SLURM.

    Attributes:
        jobs: Number of jobs, each on one node.
        cores: Of each job, a worker process per core; with a GPU one process has them all.
        memory: Of each job, such as ``16GB``.
        walltime: Of each job, ``HH:MM:SS``; a cell that is cut off by it is run again.
        queue: Partition; empty for the default one.
        account: Empty for the default one.
        gpu: Whether each job has one: two would be two jobs.
        interface: Network interface that the workers see, such as ``ib0``; empty for the default one.
        extra: Further ``#SBATCH`` options.

    Raises:
        ValueError: If a number is out of range.
    """

    jobs: int = 1
    cores: int = 1
    memory: str = "4GB"
    walltime: str = "01:00:00"
    queue: str = ""
    account: str = ""
    gpu: bool = False
    interface: str = ""
    extra: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what SLURM would refuse later and in other words."""
        for name in ("jobs", "cores"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}; 1 is a good start")

    def options(self) -> dict[str, Any]:
        """For dask-jobqueue's SLURMCluster."""
        processes = 1 if self.gpu else self.cores
        return {
            "job_name": "helene",
            "cores": processes,
            "processes": processes,
            "job_cpu": self.cores,
            "memory": self.memory,
            "walltime": self.walltime,
            "queue": self.queue or None,
            "account": self.account or None,
            "interface": self.interface or None,
            "job_extra_directives": [*self.extra, *(["--gpus-per-node=1"] if self.gpu else [])],
            "worker_extra_args": ["--resources", "GPU=1"] if self.gpu else [],
            "job_script_prologue": [f"export {name}=1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")],
        }


def job_script(settings: Slurm, scheduler: str = "tcp://SCHEDULER:PORT") -> str:
    """The script that is handed to sbatch for each job; needs dask-jobqueue, no SLURM.

    Raises:
        ValueError: If dask-jobqueue is missing.
    """
    script: str = _jobqueue().slurm.SLURMJob(scheduler, name="helene", **settings.options()).job_script()
    return script


def cluster(settings: Slurm) -> Any:
    """A running scheduler whose jobs wait in SLURM's queue: a `dask_jobqueue.SLURMCluster`, to be closed.

    Raises:
        ValueError: If dask-jobqueue or sbatch is missing.
    """
    jobqueue = _jobqueue()
    if shutil.which("sbatch") is None:
        raise ValueError("there is no sbatch here: run this where jobs are submitted, or look at the script (--script)")
    made = jobqueue.SLURMCluster(**settings.options())
    made.scale(jobs=settings.jobs)
    return made


def _jobqueue() -> Any:
    try:
        import dask_jobqueue
        import dask_jobqueue.slurm
    except ImportError as err:
        raise ValueError("SLURM needs the package dask-jobqueue: pip install 'helene[dask]'") from err
    return dask_jobqueue


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m helene.lab.sweeps.slurm",
        description="Start a Dask cluster of SLURM jobs and keep it until Ctrl-C; sweeps use it by --scheduler.",
    )
    parser.add_argument("--script", action="store_true", help="print the script of one job and do nothing")
    for name, kind, meaning in (
        ("jobs", int, "number of jobs"),
        ("cores", int, "of each job, a worker process per core; with --gpu one process has them all"),
        ("memory", str, "of each job"),
        ("walltime", str, "of each job, HH:MM:SS"),
        ("queue", str, "partition"),
        ("account", str, "account"),
        ("interface", str, "network interface, such as ib0"),
    ):
        default = getattr(Slurm, name)
        parser.add_argument(f"--{name}", type=kind, default=default, help=f"{meaning} (default: {default or 'none'})")
    parser.add_argument("--gpu", action="store_true", help="one in each job, for `helene llm`")
    parser.add_argument("--extra", action="append", default=[], metavar="OPTION", help="further #SBATCH option")
    words = vars(parser.parse_args(argv))
    only_script = words.pop("script")
    try:
        settings = Slurm(**{**words, "extra": tuple(words["extra"])})
        if only_script:
            print(job_script(settings))
            return 0
        with cluster(settings) as running:
            print(f"helene scaling --scheduler {running.scheduler_address}", flush=True)
            print("the jobs are queued; Ctrl-C ends them and the scheduler", file=sys.stderr)
            threading.Event().wait()
    except ValueError as err:
        print(f"helene.lab.sweeps.slurm: {err}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
