"""The speed of the sweeps as records: ``helene scaling speed FILE``, on an idle machine, some ten minutes.

Every number is a ratio of two things timed in turns; each record says how busy other programs kept the cores meanwhile.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

from helene.lab.runs.provenance import provenance
from helene.lab.runs.records import Record, write_jsonl
from helene.lab.runs.store import Store
from helene.lab.sweeps.sweep import sweep
from helene.noise import NOISE_VERSION
from synthetic.design import load
from synthetic.run import cost, run
from synthetic.simulation.speed import directions_over_randn, share_of_floor

EXPERIMENT = "speed"
FLOOR_CELLS = ((1, 256), (8, 32), (8, 64), (16, 64), (32, 128))
PROCESSES = 7


def two_workers(preset: str) -> dict[str, Any]:
    """Wall-clock of a preset's sweep with one worker over that with two, start and end of the workers included."""
    configs = load(preset, NOISE_VERSION).configs
    one, two = (_swept(configs, jobs) for jobs in (1, 2))
    return {"seconds_one": [one], "seconds_two": [two], "ratio": one / two, "cells": len(configs)}


def _swept(configs: Sequence[Any], jobs: int) -> float:
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "records.sqlite") as store:
        start = time.perf_counter()
        sweep(EXPERIMENT, configs, run, store, jobs, provenance={}, progress=False, cost=cost)
        return time.perf_counter() - start


class OtherPrograms:
    """The share of the machine's processor time that other programs took, from construction until `share`."""

    def __init__(self) -> None:
        self.before = self._now()

    @staticmethod
    def _now() -> tuple[float, float, float]:
        ticks = os.sysconf("SC_CLK_TCK")
        spent = [int(word) / ticks for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        idle = spent[3] + spent[4]
        times = os.times()
        return sum(spent), sum(spent) - idle, sum(times[:4])

    def share(self) -> float:
        """Between 0 and 1, over all cores."""
        total, busy, ours = (after - before for after, before in zip(self._now(), self.before, strict=True))
        return max(0.0, busy - ours) / total if total else 0.0


def with_interval(name: str, function: Callable[..., float], *args: int) -> dict[str, Any]:
    """A ratio in fresh processes, one after the other, for it differs from one to the next.

    Half of all processes lie below the median, so that the least and the largest of seven enclose it with probability
    1 − 2 / 2^7, 98 %.
    """
    ratios = []
    for _ in range(PROCESSES):
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            ratios.append(pool.submit(function, *args).result())
    return {name: median(ratios), "low": min(ratios), "high": max(ratios), f"{name}s": ratios}


def measure_speed(path: Path) -> None:
    """Measure everything and write the records.

    Raises:
        ValueError: If the path cannot be written; it is tried before the ten minutes, not after.
    """
    try:
        tempfile.TemporaryFile(dir=path.resolve().parent).close()
    except OSError as err:
        raise ValueError(f"cannot write {path}: {err.strerror}") from err
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is no regular file; choose another name")
    facts = provenance()
    records = []
    for n, width in FLOOR_CELLS:
        others = OtherPrograms()
        config: dict[str, Any] = {"measure": "share_of_floor", "method": "mezo", "n": n, "width": width}
        records.append(_record(config, with_interval("share", share_of_floor, n, width), others, facts))
    others = OtherPrograms()
    result = with_interval("ratio", directions_over_randn)
    records.append(_record({"measure": "directions_over_randn"}, result, others, facts))
    others = OtherPrograms()
    records.append(_record({"measure": "two_workers", "preset": "standard"}, two_workers("standard"), others, facts))
    write_jsonl(path, records, EXPERIMENT)


def _record(config: dict[str, Any], result: dict[str, Any], others: OtherPrograms, facts: dict[str, Any]) -> Record:
    result_and_load = {"status": "reached", **result, "others": round(others.share(), 3)}
    print(config, result_and_load, flush=True)
    return Record.of(EXPERIMENT, config, result_and_load, facts)
