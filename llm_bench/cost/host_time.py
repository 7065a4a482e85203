"""Where the host's time of `optimizer.step` goes on a GPU, where it launches each kernel of the forwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from helene.evaluation.blocks import Block, Copies
from helene.evaluation.probe import Probe
from helene.evaluation.swap import Swap
from helene.steps import measurement
from helene.steps.base import Base
from llm_bench.cost.timeline import HostTimers, timed

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


def host_account(
    make: Callable[[], Any], loss: Callable[[], Any], steps: int = 40, warmup: int = 5
) -> dict[str, float]:
    """Seconds of the host in one step, by part; each moment counts once, for the innermost part.

    Args:
        make: Makes the optimizer.
        loss: What its steps are given.
        steps: That the seconds are the mean of.
        warmup: Steps before these.

    Returns:
        By name of `PLACES`, of `FORWARDS`, and "other", all else. They add up to a step as it is timed here, which is
        longer than one that nobody looks at.
    """
    timers = HostTimers()
    with timed(timers, PLACES):
        optimizer = make()
        forward = timers.wrap(FORWARDS, loss)
        for _ in range(warmup):
            optimizer.step(forward)
        torch.cuda.synchronize()
        return timers.of_a_step(lambda: optimizer.step(forward), steps, "other")


def host_seconds(call: Callable[[], Any], calls: int = 40) -> float:
    """Seconds of the host until a call returns, the mean of some; the device is not waited for."""
    call()
    torch.cuda.synchronize()
    return sum(HostTimers().of_a_step(call, calls, "call").values())
