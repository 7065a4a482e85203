"""The GPU benchmarks without a GPU: they skip with a reason, and their plumbing runs on a tiny model on the CPU."""

from __future__ import annotations

import time

import pytest
import torch

from benchmarks import gpu, run

pytestmark = [pytest.mark.llm, pytest.mark.filterwarnings("ignore:step"), pytest.mark.filterwarnings("ignore:steps")]


class Replayed:
    """Stands for captured forwards."""

    def __init__(self, closure, count=2):
        self.closure, self.count = closure, count

    @torch.no_grad()
    def __call__(self):
        return [self.closure() for _ in range(self.count)][-1]


def timed(contestants, rounds, warmup=0):
    """Stands for the timing by device events; one step each."""
    found = {}
    for name, contestant in contestants.items():
        start = time.perf_counter()
        contestant.step()
        found[name] = {"median_seconds": time.perf_counter() - start}
    return found


@pytest.fixture
def on_cpu(monkeypatch):
    pytest.importorskip("transformers")
    for name, value in {"SHAPE": "opt-tiny", "ROWS": 2, "LENGTH": 8, "DEVICE": "cpu"}.items():
        monkeypatch.setattr(gpu, name, value)
    monkeypatch.setattr("llm_bench.models.shapes.VOCABULARY", 600)
    monkeypatch.setattr("llm_bench.cost.captured_forwards.CapturedForwards", Replayed)
    monkeypatch.setattr("llm_bench.cost.timing.time_in_turns", timed)
    for name in ("reset_peak_memory_stats", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 7)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_every_benchmark_says_why_it_skips():
    found = [row for suite in run.suites(["gpu"]) for row in run.measurements(suite)]
    assert len(found) == len(gpu.TUNINGS) * (2 * len(gpu.METHODS) + 1 + len(gpu.METHODS))
    assert {value for _, value in found} == {"skipped: no CUDA device"}


def test_every_method_and_tuning_gives_a_time_and_a_ratio(on_cpu, monkeypatch):
    monkeypatch.setattr(gpu, "check_captured", lambda engine: None)
    bench = gpu.Step()
    cache = bench.setup_cache()
    for method in gpu.METHODS:
        for tuning in gpu.TUNINGS:
            bench.setup(cache, method, tuning)
            seconds = bench.track_median_seconds_of_a_step(cache, method, tuning)
            assert seconds > 0
            assert bench.track_step_over_two_forwards(cache, method, tuning) == seconds / cache[method, tuning][1]


def test_a_step_that_is_not_captured_fails(on_cpu):
    """As on the CPU, where the engine runs without a graph."""
    with pytest.raises(RuntimeError, match="the step was not captured: no CUDA device"):
        gpu.in_turns("full")


@pytest.mark.parametrize(("method", "tuning"), [(gpu.FLOOR, "lora"), ("MeZO", "prefix")])
def test_peak_bytes_are_those_of_eleven_steps(on_cpu, monkeypatch, method, tuning):
    monkeypatch.setattr(gpu, "check_captured", lambda engine: None)
    assert gpu.peak(method, tuning) == 7


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_fresh_process_that_fails_says_why():
    pytest.importorskip("transformers")
    with pytest.raises(RuntimeError, match=r"CUDA|NVIDIA"):
        gpu.peak_in_a_fresh_process("MeZO", "full")
