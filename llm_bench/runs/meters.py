"""Seconds with the device waited for, peak bytes of a phase, energy."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class Stopwatch:
    """Adds up the seconds of what it is around; waits for the device at both ends, else launches are timed, not work.

    Attributes:
        seconds: So far; may be set, to go on after an interruption.
    """

    def __init__(self, device: torch.device, seconds: float = 0.0) -> None:
        self.device, self.seconds = device, seconds

    @contextmanager
    def running(self) -> Iterator[None]:
        """Counts the time inside."""
        self._wait()
        start = time.perf_counter()
        try:
            yield
        finally:
            self._wait()
            self.seconds += time.perf_counter() - start

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class PeakBytes:
    """Peak of the device's allocator by phase (load, step, evaluation); None on a CPU, whose allocator keeps no count.

    A phase may be entered many times: its peak is the highest of all.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.peaks: dict[str, int] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Counts what is allocated at once inside."""
        if self.device.type != "cuda":
            yield
            return
        torch.cuda.reset_peak_memory_stats(self.device)
        try:
            yield
        finally:
            self.peaks[name] = max(self.peaks.get(name, 0), torch.cuda.max_memory_allocated(self.device))

    def summary(self) -> dict[str, int | None]:
        """Peaks by phase."""
        return {name: self.peaks.get(name) for name in ("load", "step", "evaluation")}


class Energy:
    """Joules that the device drew since construction, where NVML tells; else None."""

    def __init__(self, device: torch.device) -> None:
        self._handle: Any = None
        if device.type == "cuda":
            try:
                import pynvml  # type: ignore[import-not-found]

                pynvml.nvmlInit()
                self._handle = pynvml.nvmlDeviceGetHandleByIndex(device.index or 0)
                self._nvml = pynvml
                self._start = self._read()
            except Exception:
                self._handle = None  # an old driver or a card that keeps no count

    def _read(self) -> int:
        return int(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))

    @property
    def joules(self) -> float | None:
        """So far."""
        return None if self._handle is None else (self._read() - self._start) / 1000.0
