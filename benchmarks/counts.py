"""Deterministic counts of an optimizer step: a change here is a change of algorithm or implementation, never noise."""

from __future__ import annotations

import itertools
from contextlib import contextmanager

from .common import METHODS, CountedLoss, Lookup, make, parameter, subject, values

STEPS = 20
SIZE = 1 << 14


STATES = ["float32", "bfloat16", "8bit"]


class _Counts(Lookup):
    def setup_cache(self) -> dict:
        return values(count, itertools.product(METHODS)) | values(state_bytes, itertools.product(METHODS, STATES))


class OptimizerStep(_Counts):
    """What 20 steps ask of the loss, the generator and memory."""

    params = (list(METHODS),)
    param_names = ("method",)

    def track_losses_of_20_steps(self, cache: dict, method: str) -> int:
        """How often the closure was asked; a backward is not counted."""
        return cache[(method,)]["losses"]

    def track_random_numbers_of_20_steps(self, cache: dict, method: str) -> int:
        """In units of the parameters."""
        return cache[(method,)]["random"]

    def track_parameter_passes_of_20_steps(self, cache: dict, method: str) -> int:
        """How often an operator reads or writes parameter memory, in units of the parameters."""
        return cache[(method,)]["passes"]

    track_losses_of_20_steps.unit = "losses"
    track_random_numbers_of_20_steps.unit = "numbers"
    track_parameter_passes_of_20_steps.unit = "passes"


class State(_Counts):
    """Bytes of optimizer state for each float32 parameter, after three steps."""

    params = (list(METHODS), STATES)
    param_names = ("method", "state_dtype")
    unit = "bytes"

    def track_state_bytes_of_a_parameter(self, cache: dict, method: str, state_dtype: str) -> float:
        return cache[method, state_dtype]


def count(method: str) -> dict[str, int]:
    """Losses, random numbers and parameter passes of 20 steps of a method."""
    p = parameter(SIZE)
    loss, optimizer = CountedLoss(p), make(method, [p])
    optimizer.step(loss)  # the first step checks what the loss reads
    loss.calls = 0
    with random_calls() as calls, touches(p) as touched:
        for _ in range(STEPS):
            optimizer.step(loss)
    losses, passes = loss.calls, round(touched.elements / SIZE)
    drawn = sum(draw(*args, **kwargs).numel() for draw, args, kwargs in calls)
    return {"losses": losses, "random": round(drawn / SIZE), "passes": passes}


@contextmanager
def random_calls():
    """The calls of the generator's functions inside, each as (function, arguments, keyword arguments).

    Signs are made of words: that is one call.
    """
    with subject():
        from helene import noise
    calls: list[tuple] = []
    within = False
    sources = {name: getattr(noise, name) for name in ("normal", "signs", "words") if hasattr(noise, name)}

    def recorded(source):
        def draw(*args, **kwargs):
            nonlocal within
            if within:
                return source(*args, **kwargs)
            calls.append((source, args, kwargs))
            within = True
            try:
                return source(*args, **kwargs)
            finally:
                within = False

        return draw

    for name, source in sources.items():
        setattr(noise, name, recorded(source))
    try:
        yield calls
    finally:
        for name, source in sources.items():
            setattr(noise, name, source)


def state_bytes(method: str, state_dtype: str) -> float:
    """Bytes of state tensors for each parameter."""
    import torch
    from torch.utils._pytree import tree_leaves

    p = parameter(SIZE)
    options = {} if state_dtype == "float32" else {"state_dtype": state_dtype}
    loss, optimizer = CountedLoss(p), make(method, [p], **options)
    for _ in range(3):
        optimizer.step(loss)
    leaves = tree_leaves(dict(optimizer.state[p]))
    return round(sum(leaf.nbytes for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim()) / SIZE, 4)


def touches(p):
    """Counts the elements of a parameter's memory that operators read or write; views cost nothing."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    start, end = p.data_ptr(), p.data_ptr() + p.nbytes

    class Touches(TorchDispatchMode):
        elements = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
            for leaf in [] if is_view else tree_leaves((args, kwargs or {})):
                if isinstance(leaf, torch.Tensor) and start <= leaf.data_ptr() < end:
                    self.elements += leaf.numel()
            return func(*args, **(kwargs or {}))

    return Touches()
