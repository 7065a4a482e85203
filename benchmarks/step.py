"""Time of an optimizer step beyond the forwards, over sizes and dtypes, and as a multiple of its floor."""

from __future__ import annotations

import itertools
import time

from .common import REQUIRED, Cached, CountedLoss, make, parameter, subject, values

TIMED = ["MeZO", "Helene", "ZOAdam"]
SIZES, DTYPES = [10**4, 10**6], ["float32", "bfloat16"]
ROUNDING: dict = {"float32": {}, "bfloat16": {"rounding": "stochastic"}}
# State elements that a step reads and writes for each parameter; Helene writes h every tenth step.
STATE_TRAFFIC = {"MeZO": 0.0, "Helene": 3.1, "ZOAdam": 4.0}


class Step:
    """Five steps on one core; the loss reads 1,024 elements, so that the step is the optimizer's own work."""

    params = (TIMED, SIZES, DTYPES)
    param_names = ("method", "size", "dtype")
    warmup_time = 0.5
    rounds = 1
    repeat = (2, 5, 3.0)

    def setup(self, method: str, size: int, dtype: str) -> None:
        import torch

        torch.set_num_threads(1)
        self.p = parameter(size, dtype)
        self.loss = CountedLoss(self.p)
        self.optimizer = make(method, [self.p], **ROUNDING[dtype])
        self.optimizer.step(self.loss)

    def time_5_steps(self, method: str, size: int, dtype: str) -> None:
        for _ in range(5):
            self.optimizer.step(self.loss)


class OverFloor(Cached):
    """The same steps as multiples of their floor, measured in turns in one process.

    The floor: three draws of the direction (and one of rounding words, in bfloat16) at the generator's rate, and every
    byte that has to be moved at copy bandwidth. What a step costs whatever its size shows at 10,000 elements.
    """

    params = (TIMED, SIZES, DTYPES)
    param_names = ("method", "size", "dtype")
    unit = "ratio"

    def setup_cache(self) -> dict:
        return values(step_over_floor, itertools.product(*self.params))

    def track_multiple_of_the_floor(self, cache: dict, method: str, size: int, dtype: str) -> float:
        return cache[method, size, dtype]


class LargeOverFloor(Cached):
    """A step over 10 million float32 parameters as a multiple of its floor."""

    params = (["MeZO", "Helene"],)
    param_names = ("method",)
    unit = "ratio"

    def setup_cache(self) -> dict:
        return values(large_over_floor, itertools.product(*self.params))

    def track_multiple_of_the_floor(self, cache: dict, method: str) -> float:
        return cache[(method,)]


class PeakBytes(Cached):
    """Measured over predicted bytes of a step beyond the parameters; 1 is a prediction that holds."""

    params = (["MeZO", "Helene"], ["float32", "8bit"])
    param_names = ("method", "state_dtype")
    unit = "ratio"

    def setup_cache(self) -> dict:
        return values(measured_over_predicted, itertools.product(*self.params))

    def track_measured_over_predicted(self, cache: dict, method: str, state_dtype: str) -> float:
        return cache[method, state_dtype]


def step_over_floor(method: str, size: int, dtype: str, repeats: int = 7) -> float:
    """Seconds of a step over those of its floor, each part at the best of several repeats."""
    import torch

    with subject():
        from helene import noise
    torch.set_num_threads(1)
    p = parameter(size, dtype)
    loss = CountedLoss(p)
    optimizer = make(method, [p], **ROUNDING[dtype])
    source, sink = (torch.zeros(size, dtype=p.dtype) for _ in range(2))
    wide_source, wide_sink = (torch.zeros(size) for _ in range(2))
    device = torch.device("cpu")
    actions = {
        "step": lambda: optimizer.step(loss),
        "loss": loss,
        "copy": lambda: sink.copy_(source),
        "wide copy": lambda: wide_sink.copy_(wide_source),
        "normals": lambda: noise.normal(0, 1, 0, 1, 0, size),
        "words": (lambda: noise.words(0, 1, 0, 1, 0, size, device)) if dtype == "bfloat16" else int,
    }
    best = dict.fromkeys(actions, float("inf"))
    for _ in range(repeats + 1):
        for name, action in actions.items():
            start = time.perf_counter()
            action()
            best[name] = min(best[name], time.perf_counter() - start)
    # A copy moves two elements: two perturbed copies and the update are three of them.
    floor = 3 * best["normals"] + best["words"] + 3 * best["copy"] + STATE_TRAFFIC[method] / 2 * best["wide copy"]
    return (best["step"] - 2 * best["loss"]) / floor


def large_over_floor(method: str) -> float:
    """As `helene.lab.costs` has it."""
    import torch

    with subject():
        from helene.lab.costs import step_cost
    torch.set_num_threads(1)
    return step_cost(method).ratio


def measured_over_predicted(method: str, state_dtype: str) -> float:
    """As the allocators count it."""
    import torch

    with subject():
        from helene.lab.costs import memory_row
    row = memory_row(method, torch.float32, state_dtype, **REQUIRED.get(method, {}))
    return row.measured / row.predicted
