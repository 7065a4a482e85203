"""Where the host's time of `optimizer.step` goes on a GPU, where it launches each kernel of the forwards."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch

from helene.evaluation.blocks import Block, Copies
from helene.evaluation.probe import Probe
from helene.evaluation.swap import Swap
from helene.steps import measurement
from helene.steps.base import Base
from llm_bench.cost.timeline import HostTimers, timed

EAGER, STEP, BARE = "two eager forwards", "step", "step that launches no kernel of its own"
FORWARDS = "forwards"
PLACES = (
    (Probe, "_before", "hooks"),
    (Probe, "_after", "hooks"),
    (Swap, "_point_at", "pointing parameters at copies, and back"),
    (Swap, "_point_back", "pointing parameters at copies, and back"),
    (Block, "write", "launching copies"),
    (Copies, "begin", "looking what has moved"),
    (Probe, "_check_held", "looking what has moved"),
    (Base, "plan", "plan"),
    (Base, "apply", "update"),
    (measurement, "finite", "waiting for the losses"),
)
Step = Callable[[Callable[[], Any]], Any]  # of a loss


def host_seconds(
    make: Callable[[], tuple[Step, Callable[[], Any]]], rounds: int = 20, calls: int = 5
) -> dict[str, list[float]]:
    """Seconds of the host until calls have returned, by what was called; hosts are shared, so that all take turns.

    The device is waited for before each turn, not at its end.

    Args:
        make: Makes a model's `optimizer.step` and what it is given.
        rounds: Turns of each.
        calls: In a turn, whose mean one number is.

    Returns:
        A number a round for `EAGER`, `STEP` and `BARE` (what Python and the forwards take), and for each part of a
        step, by name of `PLACES`, of `FORWARDS`, and "other". The parts add up to a step as it is timed there, which is
        longer than one that nobody looks at: each moment counts once, for the innermost part.
    """
    step, loss = make()
    odd = itertools.count()
    timers = HostTimers()
    with timed(timers, PLACES):
        parted, forward = make()

    def eager() -> None:
        with torch.no_grad():
            loss()
            loss()

    def bare() -> None:  # other losses each time: a flat step looks again at what it reads
        step(lambda: loss() + next(odd) % 7)

    watched = timers.wrap(FORWARDS, forward)
    for _ in range(5):  # to warm up
        eager()
        step(loss)
        parted(watched)
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        turn = {EAGER: _mean(eager, calls), STEP: _mean(lambda: step(loss), calls)}
        with _no_launches():
            turn[BARE] = _mean(bare, calls)
        torch.cuda.synchronize()
        with timed(timers, PLACES):
            turn |= timers.of_a_step(lambda: parted(watched), calls, "other")
        for name, seconds in turn.items():
            found.setdefault(name, []).append(seconds)
    return found


def _mean(call: Callable[[], Any], calls: int) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls


def _no_launches() -> ExitStack:
    """While active, copies and updates are not made: forwards read what copies held before."""
    from helene.kernels import launch

    stack = ExitStack()
    for name in ("perturb", "update"):
        stack.enter_context(patch.object(launch, name, lambda *_, **__: None))
    return stack
