"""Seconds of calls: one alone, or several contestants in turns with device events, as medians and quartiles."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from llm_bench.runs.meters import Stopwatch


def seconds_of(call: Callable[[], Any], device: torch.device, times: int = 1) -> float:
    """Seconds of a call, the mean of some in a row, the device waited for at both ends."""
    watch = Stopwatch(device)
    with watch.running():
        for _ in range(times):
            call()
    return watch.seconds / times


class Contestant(NamedTuple):
    """Something to time: a function that makes one step, and how many steps a sample holds."""

    step: Callable[[], Any]
    steps: int = 10


def time_in_turns(contestants: Mapping[str, Contestant], rounds: int, warmup: int = 3) -> dict[str, dict[str, Any]]:
    """Seconds of one step of each contestant.

    Every round times each contestant once, in a fixed order; a sample is the device time of several steps, host waits
    included where a step has them.

    Args:
        contestants: By name.
        rounds: Samples of each.
        warmup: Steps of each before the first sample.

    Returns:
        By name: ``median_seconds``, ``p25_seconds``, ``p75_seconds``, ``rounds``, ``steps`` a sample.
    """
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    for contestant in contestants.values():
        for _ in range(warmup):
            contestant.step()
    torch.cuda.synchronize()
    for _ in range(rounds):
        for name, contestant in contestants.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(contestant.steps):
                contestant.step()
            end.record()
            end.synchronize()
            samples[name].append(start.elapsed_time(end) / 1e3 / contestant.steps)
    results = {}
    for name, values in samples.items():
        low, middle, high = statistics.quantiles(values, n=4)
        results[name] = {
            "median_seconds": middle,
            "p25_seconds": low,
            "p75_seconds": high,
            "rounds": rounds,
            "steps": contestants[name].steps,
        }
    return results
