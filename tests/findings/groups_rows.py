"""Runs of the page on groups, and how it writes them."""

from __future__ import annotations

from helene.lab.runs.store import Record
from tests.findings.committed import full_runs


def three_tests(preset: str, method: str, task: str = "causal-sst2") -> list[Record]:
    runs = full_runs(f"{preset}/{task}", method, "test")
    return runs if len(runs) == 3 else []


def milliseconds_of(runs: list[Record]) -> list[float]:
    """Of a step, the first 50 left out."""
    curves = [run.result["curve"]["training_seconds"] for run in runs]
    return [1e3 * (seconds[-1] - seconds[1]) / (runs[0].config["steps"] - 50) for seconds in curves]


def lr_of(runs: list[Record]) -> str:
    (lr,) = {run.config["lr"] for run in runs}
    return f"{lr:.1e}".replace(".0e", "e").replace("e-0", "e-")


def listed(runs: list[Record], what: str, form: str) -> str:
    return ", ".join(format(run.result["target"][what], form) for run in runs)


def steps_of(runs: list[Record]) -> list[float]:
    return [run.result["target"]["steps"] for run in runs]


def shares(some: list[Record], others: list[Record], what: str) -> list[float]:
    """Of what others spend until the target, seed by seed."""
    return [a.result["target"][what] / b.result["target"][what] for a, b in zip(some, others, strict=True)]


def scores(runs: list[Record]) -> str:
    return ", ".join(f"{run.result['test']['metric']:.3f}" for run in runs)


def least_noise() -> list[float]:
    """The lower ends that the runs with four groups told last, by seed; they told no upper ones."""
    told = [r.result["optimizer"]["noise"] for r in full_runs("groups/causal-sst2", "mezo-grouped-4", "test")]
    assert {(noise["steps"], noise["noise"], noise["high"]) for noise in told} == {(200, None, None)}
    return [noise["low"] for noise in told]
