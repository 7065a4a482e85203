"""What a step costs beside its forwards: seconds against a floor, bytes against a prediction, normals counted.

The floor is what no implementation with this noise can go below: every byte that has to be read or written at the
machine's copy bandwidth, plus every normal at the generator's own rate, both measured in the same process. Bytes are
counted by torch's allocator and by tracemalloc (numpy's arrays), never from the resident set.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import profiler

import helene
from helene import noise
from helene.steps.base import Base
from helene.steps.first import FirstOrder
from helene.steps.zeroth import ZerothOrder

WORKSPACE_BYTES = 10 << 20  # bound on what chunks and the noise need, whatever the model


@dataclass(frozen=True)
class StepCost:
    """One step over parameters whose loss costs next to nothing.

    Attributes:
        method: Name of the class.
        size: Number of float32 parameters.
        seconds: Of a step, without its forwards.
        floor_seconds: ``num_bytes / bandwidth + num_normals / normals_per_second``.
        num_bytes: Bytes of parameters, copies and state that a step has to read and write.
        num_normals: Normals that a step draws.
        bandwidth: Bytes a second of a copy, reads and writes counted.
        normals_per_second: Rate of `helene.noise.normal` at this size.
    """

    method: str
    size: int
    seconds: float
    floor_seconds: float
    num_bytes: int
    num_normals: int
    bandwidth: float
    normals_per_second: float

    @property
    def ratio(self) -> float:
        """Seconds over the floor."""
        return self.seconds / self.floor_seconds


def step_cost(method: str = "MeZO", size: int = 10_000_000, repeats: int = 7) -> StepCost:
    """Time a step of MeZO or Helene against its floor, on one parameter, each part at its best of several repeats.

    The parts are interleaved, so that a busy machine slows all of them.

    Raises:
        ValueError: If the method's traffic is not known here.
    """
    p, step, forwards = _problem(method, size)
    source, sink = torch.zeros(size), torch.zeros(size)
    step(), noise.normal(0, 1, 0, 1, 0, size), sink.copy_(source)
    times: dict[str, list[float]] = {"step": [], "forward": [], "copy": [], "normal": []}
    for _ in range(repeats):
        for name, action in (
            ("step", step),
            ("forward", lambda: _cheap_loss(p)),
            ("copy", lambda: sink.copy_(source)),
            ("normal", lambda: noise.normal(0, 1, 0, 1, 0, size)),
        ):
            start = time.perf_counter()
            action()
            times[name].append(time.perf_counter() - start)
    best = {name: min(values) for name, values in times.items()}
    num_bytes, num_normals = traffic(method, size), 3 * size
    bandwidth, rate = 2 * p.nbytes / best["copy"], size / best["normal"]
    seconds = best["step"] - forwards * best["forward"]
    floor = num_bytes / bandwidth + num_normals / rate
    return StepCost(
        method,
        size,
        seconds=seconds,
        floor_seconds=floor,
        num_bytes=num_bytes,
        num_normals=num_normals,
        bandwidth=bandwidth,
        normals_per_second=rate,
    )


def traffic(method: str, size: int) -> int:
    """Bytes that a step in float32 has to move: two copies (read theta, write), the update, and the state.

    Raises:
        ValueError: If it is not known here.
    """
    update = {
        "MeZO": 2.0,
        "Helene": 2.0 + 2.0 + 1.0 + 0.1,  # theta and m read and written, h read, and written every ten steps
    }
    if method not in update:
        raise ValueError(f"the traffic of {method!r} is not known; known are {', '.join(update)}")
    return int(4 * size * (4.0 + update[method]))


def _problem(method: str, size: int) -> tuple[nn.Parameter, Callable[[], Any], int]:
    p = nn.Parameter(torch.zeros(size))
    options = {"anneal_horizon": 100, "batch_size": 4} if method == "Helene" else {}
    optimizer = getattr(helene, method)([p], 1e-6, **options)
    return p, lambda: optimizer.step(lambda: _cheap_loss(p)), optimizer.forwards_at(2)


def _cheap_loss(p: Tensor) -> Tensor:
    return p[:64].square().sum()


def peak_bytes(action: Callable[[], Any]) -> int:
    """Most bytes that an action holds at one time beyond those held before: torch's CPU allocator plus numpy.

    The two peaks are added, which is an upper bound where they do not coincide.
    """
    tracemalloc.start()
    try:
        with profiler.profile(profile_memory=True) as profile:
            action()
        numpy_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    events = [event for event in profile.kineto_results.events() if event.name() == "[memory]"]
    live = top = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        top = max(top, live)
    return top + numpy_bytes


@dataclass(frozen=True)
class MemoryRow:
    """Bytes beyond the parameters: what was predicted and what the allocators counted, a parameter and constant."""

    method: str
    dtype: str
    state_dtype: str
    predicted: float
    measured: float
    constant: float


def memory_row(
    method: str, dtype: torch.dtype, state_dtype: str, sizes: tuple[int, int] = (1 << 19, 1 << 20), **options: Any
) -> MemoryRow:
    """Measure a method's bytes a parameter from two sizes, which separates them from the constant workspace.

    Two steps from a fresh optimizer, so that state and scratch memory are counted; no model is given, so the perturbed
    copy is a full one.
    """
    peaks = []
    tiny, one = nn.Parameter(torch.zeros(2, dtype=dtype)), torch.ones(2, dtype=dtype)
    getattr(helene, method)([tiny], 0.0, **options).step(lambda: torch.dot(tiny, one))  # loads what torch loads once
    for size in sizes:
        p, c = nn.Parameter(torch.zeros(size, dtype=dtype)), torch.ones(size, dtype=dtype)
        optimizer = getattr(helene, method)([p], 0.0, state_dtype=state_dtype, **options)

        def run(optimizer: Any = optimizer, p: Tensor = p, c: Tensor = c) -> None:
            for _ in range(2):
                optimizer.step(lambda: torch.dot(p, c))

        if size == sizes[0]:
            noise.normal(0, 1, 0, 1, 0, 1 << 17)  # allocates the workspace that a thread keeps
        peaks.append(peak_bytes(run))
        predicted = predicted_bytes(optimizer)
    slope = (peaks[1] - peaks[0]) / (sizes[1] - sizes[0])
    return MemoryRow(
        method,
        dtype=str(dtype)[6:],
        state_dtype=state_dtype,
        predicted=predicted / sizes[1],
        measured=slope,
        constant=peaks[0] - slope * sizes[0],
    )


def predicted_bytes(optimizer: Base) -> int:
    """Bytes beyond the parameters that a step needs, the constant workspace apart.

    State; for zeroth-order methods a full copy of the trained parameters (less where a model is given), for forward
    gradients z in its place, once more for the largest parameter; for first-order methods and curvature by backward,
    the gradient.
    """
    sizes = [target.tensor.nbytes for target in optimizer.targets]
    copies = sum(sizes) if isinstance(optimizer, ZerothOrder) else 0
    if isinstance(optimizer, helene.ForwardGrad):
        copies += max(sizes)
    gradients = sum(sizes) if isinstance(optimizer, FirstOrder) else 0
    if optimizer.param_groups[0].get("curvature") in ("backprop", "sampled_labels"):
        gradients += sum(sizes)
    return optimizer.state_bytes() + copies + gradients


@contextmanager
def counted_normals() -> Iterator[dict[str, int]]:
    """Count the elements of directions drawn inside, on the CPU path: ``{"elements": n, "calls": k}``."""
    counts = {"elements": 0, "calls": 0}
    originals = {name: getattr(noise, name) for name in ("normal", "signs")}

    def counting(draw: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def wrapped(
            seed: int, step: int, draw_index: int, parameter: int, start: int, count: int, *rest: Any
        ) -> Tensor:
            counts["elements"] += count
            counts["calls"] += 1
            return draw(seed, step, draw_index, parameter, start, count, *rest)

        return wrapped

    for name, draw in originals.items():
        setattr(noise, name, counting(draw))
    try:
        yield counts
    finally:
        for name, draw in originals.items():
            setattr(noise, name, draw)
