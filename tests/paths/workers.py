"""Cases in other processes: kernels in Triton's interpreter, which must be chosen before Triton is imported and whose
stray writes end the process; two ranks over gloo."""

from __future__ import annotations

import os
import tempfile
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import wait
from typing import Any

import torch

from tests.paths import models, paths
from tests.paths.cases import Case, Run
from tests.paths.mutants import ignoring
from tests.paths.shards import sharded_run
from tests.paths.steps import ByEngine
from tests.paths.table import BASE

_context = get_context("forkserver")
_context.set_forkserver_preload(["torch", "helene", "tests.paths.paths", "tests.paths.shards"])
PATIENCE = 300.0  # seconds


def _serve(channel: Any, begin: Callable[..., Any], arguments: Sequence[Any]) -> None:
    torch.set_num_threads(1)
    answers = begin(*arguments)
    while (asked := channel.recv()) is not None:
        name, case, mutant = asked
        try:
            with perhaps_ignoring(mutant, case, kernels=name in paths.IN_INTERPRETER):
                answer = answers[name](case)
            channel.send(answer)
        except Exception:
            channel.send(Run(refused="Broken: " + traceback.format_exc(limit=-3)))


def perhaps_ignoring(option: str, case: Case, kernels: bool = False) -> AbstractContextManager[None]:
    """A path that ignores an option, if one is named."""
    return ignoring(option, BASE[case.method], kernels) if option else nullcontext()


class Team:
    """Processes that answer the same question together; started when asked, again after one has died."""

    def __init__(self, begin: Callable[..., Any], size: int = 1) -> None:
        self.begin, self.size = begin, size
        self.channels: list[Any] = []
        self.processes: list[Any] = []

    def ask(self, name: str, case: Case, mutant: str = "") -> list[Run]:
        """An answer from each."""
        if not self.processes:
            self._start()
        for channel in self.channels:
            channel.send((name, case, mutant))
        found: dict[int, Run] = {}
        for i, channel in enumerate(self.channels):
            process = self.processes[i]
            ready = wait([channel, process.sentinel], PATIENCE)
            try:
                found[i] = channel.recv() if channel in ready else self._dead(process, bool(ready))
            except EOFError:
                found[i] = self._dead(process, True)
        if any(run.refused.startswith("Broken") for run in found.values()):
            self.stop()
        return [found[i] for i in range(self.size)]

    def _dead(self, process: Any, ended: bool) -> Run:
        process.join(5)
        return Run(refused=f"Broken: the process ended with {process.exitcode}" if ended else "Broken: it hangs")

    def _start(self) -> None:
        meeting = tempfile.mktemp(prefix="helene-ranks-")
        for rank in range(self.size):
            mine, theirs = _context.Pipe()
            arguments = (rank, meeting) if self.size > 1 else ()
            process = _context.Process(target=_serve, args=(theirs, self.begin, arguments), daemon=True)
            process.start()
            theirs.close()
            self.channels.append(mine)
            self.processes.append(process)

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.join(10)
        self.channels, self.processes = [], []


def _interpreter() -> dict[str, Callable[[Case], Run]]:
    os.environ["TRITON_INTERPRET"] = "1"
    return paths.IN_INTERPRETER


def _rank(rank: int, meeting: str) -> dict[str, Callable[[Case], Run]]:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=2, timeout=timedelta(seconds=20)
    )

    def whole(case: Case) -> Run:
        run = Run()
        by = ByEngine(run, check_every=5)
        return paths.drive(
            case, by, run=run, shown=lambda t, b: models.share(b, rank), finish=by.flush, with_model=True
        )

    return {"ranks": whole, "sharded": lambda case: sharded_run(case, rank)}


INTERPRETER, RANKS = Team(_interpreter), Team(_rank, 2)


def interpreted(name: str, case: Case, mutant: str = "") -> Run:
    return INTERPRETER.ask(name, case, mutant)[0]


def ranked(name: str, case: Case, mutant: str = "") -> Run:
    """The run of two ranks: equal to the bit, or joined from their shards."""
    first, second = RANKS.ask(name, case, mutant)
    if first.refused or second.refused:
        if bool(first.refused) != bool(second.refused):
            RANKS.stop()
            return Run(refused=f"Broken: ranks say {first.refused!r} and {second.refused!r}")
        return first
    if name == "sharded":
        return joined(first, second)
    if any(not torch.equal(first.params[n], second.params[n]) for n in first.params):
        return Run(refused="Broken: the ranks' parameters differ")
    return first


def joined(first: Run, second: Run) -> Run:
    """Rows of both."""

    def cat(a: dict[Any, Any], b: dict[Any, Any]) -> dict[Any, Any]:
        return {
            key: a[key] + b[key]
            if a[key].numel() == 1 == b[key].numel() and key[1:] == ("clipped",)
            else torch.cat([a[key], b[key]])
            for key in a
        }

    return Run(cat(first.params, second.params), cat(first.state, second.state), first.kinds, first.losses)


def stop() -> None:
    """End all processes."""
    INTERPRETER.stop()
    RANKS.stop()
