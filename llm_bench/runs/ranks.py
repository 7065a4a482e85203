"""Runs that several processes share: the first decides which are made and keeps records, the others follow.

``python -m torch.distributed.run --nproc-per-node N`` starts them, a card each. Every rank holds the model, takes its
share of each batch and makes the same update (`helene.engine.ranks`). An error on one of them is the end of all.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed as dist

from helene.engine.ranks import Ranks
from helene.lab.sweeps.executors import Executor, InlineExecutor, Outcome, Run

if TYPE_CHECKING:
    from llm_bench.runs.config import RunConfig

TIMEOUT = timedelta(seconds=120)  # of a rank that waits for another
_NEXT = "the next run"


def started() -> int:
    """How many processes torch.distributed.run has started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def check_ranks(config: RunConfig) -> None:
    """Raise ValueError unless as many processes are here as the run is for."""
    if (here := Ranks().size) != config.ranks:
        raise ValueError(
            f"the run is for ranks={config.ranks}, here are {here}; start it by python -m torch.distributed.run "
            f"--nproc-per-node {config.ranks} -m tools.gpu_rows"
        )


def agreed(place: str, value: Any = None) -> Any:
    """The first rank's value, once all have come here; any that pickle takes.

    Args:
        place: Where this rank is, in words.
        value: What it has.

    Raises:
        RuntimeError: If another rank is at another place, or has died.
    """
    if Ranks().size == 1:
        return value
    found: list[Any] = [None] * Ranks().size
    dist.all_gather_object(found, (place, value))
    places = [there for there, _ in found]
    if len(set(places)) > 1:
        raise RuntimeError(f"ranks have come apart, so all of them end; in their order they are at {places}")
    return found[0][1]


@contextmanager
def executor(device: str) -> Iterator[Executor | None]:
    """What makes this process's runs; None on a rank that follows, once all runs are made.

    Args:
        device: ``cpu`` or ``cuda``; of several ranks each has the card of its number.
    """
    if started() == 1:
        yield InlineExecutor()
        return
    on_gpu = device.startswith("cuda")
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout=TIMEOUT)
    if Ranks().rank:
        while (call := agreed(_NEXT)) is not None:
            _made(*call)
        yield None
    else:
        yield _Leader()
        agreed(_NEXT)
    dist.destroy_process_group()  # not after an error: the others may be gone


class _Leader:
    """Has each run made by all ranks, one run after the other."""

    def outcomes(self, run: Run, configs: Sequence[dict[str, Any]]) -> Iterator[Outcome]:
        """See `Executor`; an error of a run is raised.

        Raises:
            RuntimeError: If a rank fails.
        """
        for index, config in enumerate(configs):
            agreed(_NEXT, (run, config))
            start = time.perf_counter()
            result = _made(run, config)
            yield Outcome(index, result, None, time.perf_counter() - start)


def _made(run: Run, config: dict[str, Any]) -> Mapping[str, Any]:
    rank = Ranks().rank
    try:
        result = run(config)
    except Exception as err:  # the others may wait in the run for this rank: none must go on to the next
        raise RuntimeError(f"rank {rank} failed, so all ranks end: {type(err).__name__}: {err}") from err
    agreed(f"the end of a run: {result['status']}")
    return result
