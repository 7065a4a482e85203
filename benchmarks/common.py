"""Optimizers to measure, and a loss that costs next to nothing, so that a step is the optimizer's own work.

Nothing here imports torch when it is imported: a process that only looks up a cached count starts at once. But asv's
server does where $HELENE_BENCH_PRELOAD is set, so that the processes that it forks have it.
"""

from __future__ import annotations

import importlib
import os
import runpy
import sys
from contextlib import contextmanager
from pathlib import Path

# What takes seconds to import: the first optimizer of a process imports torch._dynamo, a loaded model its own module.
SLOW = ("torch._dynamo", "numba", "scipy.stats", "matplotlib.figure")
SLOW += tuple(f"transformers.models.{name}.modeling_{name}" for name in ("opt", "roberta"))
if os.environ.get("HELENE_BENCH_PRELOAD") and "run_server" in sys.argv:
    for name in SLOW:
        importlib.import_module(name)

OURS = ("helene", "synthetic", "theory", "llm_bench")
# The table of the checkout that these benchmarks are of: the commit that is measured may have none.
METHODS = {
    entry.cls: entry for entry in runpy.run_path(str(Path(__file__).parents[1] / "helene/methods.py"))["ENTRIES"]
}


@contextmanager
def subject():
    """Around imports: what a commit lacks is skipped, a dependency that the environment lacks is an error."""
    try:
        yield
    except ImportError as error:
        if (error.name or "").split(".")[0] not in OURS:
            raise
        raise NotImplementedError(f"this commit has no such subject: {error}") from None


def values(measure, keys) -> dict:
    """What was measured for each key, or the exception that says why there is nothing."""
    found = {}
    for key in keys:
        try:
            found[key] = measure(*key)
        except Exception as error:
            # Of these two types, which can be handed to another process.
            known = type(error) in (NotImplementedError, RuntimeError)
            found[key] = error if known else RuntimeError(f"{type(error).__name__}: {error}")
    return found


def required(method: str) -> dict:
    """Arguments that a method cannot do without."""
    return METHODS[method].arguments(anneal_horizon=1000, batch_size=16)


def make(method: str, params, lr: float = 1e-6, **changes):
    """An optimizer by its public name; a commit that lacks it, or an option of it, skips the benchmark."""
    with subject():
        import helene
    if not hasattr(helene, method):
        raise NotImplementedError(f"this commit has no {method}")
    try:
        return getattr(helene, method)(params, lr, **{**required(method), **changes})
    except TypeError as error:
        if not any(words in str(error) for words in ("unexpected keyword argument", "has no argument")):
            raise
        raise NotImplementedError(f"this commit's {method} has no such option: {error}") from None


def parameter(size: int, dtype: str = "float32"):
    """A parameter with reproducible values of the scale of a trained weight."""
    import torch

    values = torch.arange(size, dtype=torch.float32).mul_(0.618034).frac_().sub_(0.5).mul_(0.04)
    return torch.nn.Parameter(values.to(getattr(torch, dtype)))


class CountedLoss:
    """The mean of some squares, which counts how often it is asked."""

    def __init__(self, p) -> None:
        self.p, self.calls = p, 0

    def __call__(self):
        self.calls += 1
        return self.p[:1024].float().square().mean()


class Cached:
    """Base of benchmarks whose values are all made in one process, `setup_cache`, and then looked up by key.

    A value that is an exception says why there is none: `NotImplementedError` skips, any other fails.
    """

    version = "1"
    timeout = 600

    def setup(self, cache, *key) -> None:
        value = cache.get(key, NotImplementedError(f"this commit has no {key}"))
        if isinstance(value, Exception):
            raise value


class Lookup(Cached):
    """Base of the deterministic benchmarks: the same numbers on every machine, so they are gated."""
