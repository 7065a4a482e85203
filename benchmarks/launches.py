"""Deterministic counts of one `optimizer.step` with its model known: what is launched on a GPU, what torch is asked.

Launches are counted on any machine: the plan is the GPU's, its kernels are stood in for by sums.
"""

from __future__ import annotations

import itertools
import os
import sys
import types
from collections import Counter
from contextlib import contextmanager
from unittest.mock import patch

from .common import Lookup, make, subject, values

METHODS = ["MeZO", "Helene", "ZOAdam", "FZOO"]
LAYERS, WIDTH, OUTPUTS = 16, 32, 160  # the last layer is as large as five of the others


COPIES = ["in blocks", "at once"]


class _Counts(Lookup):
    def setup_cache(self) -> dict:
        launches = values(count_launches, itertools.product(METHODS, COPIES))
        return launches | values(count_operations, itertools.product(METHODS))


class Launches(_Counts):
    """Kernels of the third step: copies of both probes, and the update."""

    params = (METHODS, COPIES)
    param_names = ("method", "copies")
    unit = "launches"

    def track_launches_of_a_step(self, cache: dict, method: str, copies: str) -> int:
        return cache[method, copies]


class Operations(_Counts):
    """Operations of torch in the third step on the CPU, two forwards of 32 among them."""

    params = (METHODS,)
    param_names = ("method",)
    unit = "operations"

    def track_operations_of_a_step(self, cache: dict, method: str) -> int:
        return cache[(method,)]


def prepared(method: str, steps: int = 2):
    """A step of a method over linear layers one after the other, some steps made."""
    import torch

    torch.manual_seed(0)
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, OUTPUTS))
    optimizer = make(method, model.named_parameters(), model=model)
    x = torch.ones(4, WIDTH)

    def step() -> None:
        optimizer.step(lambda: model(x).square().mean())

    for _ in range(steps):
        step()
    return step


def count_launches(method: str, copies: str) -> int:
    """Launches of the third step."""
    with launches(at_once=copies == "at once") as counted:
        step = prepared(method)
        counted.clear()
        step()
    return counted.total()


def count_operations(method: str) -> int:
    """Operations of the third step that reach a device or make a tensor."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Operations(TorchDispatchMode):
        number = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.number += 1
            return func(*args, **(kwargs or {}))

    step = prepared(method)
    with Operations() as operations:
        step()
    return operations.number


@contextmanager
def launches(at_once: bool):
    """Inside, parameters are taken for a GPU's; what would be launched is counted by name.

    Args:
        at_once: Whether there is scratch memory for all copies, as with a GPU's 4 MiB.
    """
    with subject():
        from helene import kernels
        from helene.evaluation import blocks
        from helene.kernels import control  # noqa: F401
    backend = sys.modules["helene.kernels.backend"]  # the package has a function of that name
    counted: Counter[str] = Counter()

    def perturb(tiles, plus, minus, key, values, **options):
        counted["perturb"] += 1
        for sign, buffer in ((1, plus), (-1, minus)):
            for piece in tiles.pieces if buffer is not None else ():
                buffer[piece.out : piece.out + piece.theta.numel()] = piece.theta.reshape(-1) + sign * 1e-3

    def update(*args, **options):
        counted["update"] += 1

    stand_in = types.SimpleNamespace(perturb=perturb, update=update)
    with (
        patch.dict(os.environ, {backend.VARIABLE: "triton", "TRITON_INTERPRET": "1"}),
        patch.object(backend, "has_triton", lambda: True),
        patch.object(kernels, "launch", stand_in, create=True),
        patch.object(blocks, "least_bytes", lambda device: blocks.LEAST_BYTES * at_once),
    ):
        yield counted
