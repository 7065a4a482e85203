"""Time of an optimizer step beyond the forwards, over sizes and dtypes, and as a multiple of its floor."""

from __future__ import annotations

import itertools
import time

from .common import METHODS, Cached, CountedLoss, Lookup, make, parameter, required, subject, values
from .counts import STEPS, count, random_calls, state_bytes

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


OTHERS, LARGE = [method for method in METHODS if method not in TIMED], ["MeZO", "Helene"]


class _Ratios(Cached):
    """One process for all, for it imports torch for seconds."""

    def setup_cache(self) -> dict:
        small = values(step_over_floor, itertools.product(TIMED, SIZES, DTYPES))
        others = values(step_over_own_floor, itertools.product(OTHERS))
        return small | others | values(large_over_floor, itertools.product(LARGE))


class OverFloor(_Ratios):
    """The same steps as multiples of their floor, measured in turns in one process.

    The floor: three draws of the direction (and one of rounding words, in bfloat16) at the generator's rate, and every
    byte that has to be moved at copy bandwidth. What a step costs whatever its size shows at 10,000 elements.
    """

    params = (TIMED, SIZES, DTYPES)
    param_names = ("method", "size", "dtype")
    unit = "ratio"

    def track_multiple_of_the_floor(self, cache: dict, method: str, size: int, dtype: str) -> float:
        return cache[method, size, dtype]


class OtherStep:
    """Five steps of every other method, over a million float32 parameters."""

    params = (OTHERS,)
    param_names = ("method",)
    warmup_time = 0.5
    rounds = 1
    repeat = (2, 5, 3.0)

    def setup(self, method: str) -> None:
        import torch

        torch.set_num_threads(1)
        self.p = parameter(SIZES[-1])
        self.loss = CountedLoss(self.p)
        self.optimizer = make(method, [self.p])
        self.optimizer.step(self.loss)

    def time_5_steps(self, method: str) -> None:
        for _ in range(5):
            self.optimizer.step(self.loss)


class OtherOverFloor(_Ratios):
    """The same steps as multiples of what their own random numbers and passes over memory take, in turns.

    Methods that call backward are far above it, for the loss's backward is in their step; one whose passes find their
    chunk in the cache may be a little below.
    """

    params = (OTHERS,)
    param_names = ("method",)
    unit = "ratio"

    def track_multiple_of_the_floor(self, cache: dict, method: str) -> float:
        return cache[(method,)]


class LargeOverFloor(_Ratios):
    """A step over 10 million float32 parameters as a multiple of its floor."""

    params = (LARGE,)
    param_names = ("method",)
    unit = "ratio"

    def track_multiple_of_the_floor(self, cache: dict, method: str) -> float:
        return cache[(method,)]


class PeakBytes(Lookup):
    """Measured over predicted bytes of a step beyond the parameters, to a hundredth; 1 is a prediction that holds."""

    params = (["MeZO", "Helene"], ["float32", "8bit"])
    param_names = ("method", "state_dtype")
    unit = "ratio"

    def setup_cache(self) -> dict:
        return values(measured_over_predicted, itertools.product(*self.params))

    def track_measured_over_predicted(self, cache: dict, method: str, state_dtype: str) -> float:
        return cache[method, state_dtype]


def step_over_floor(method: str, size: int, dtype: str, repeats: int = 4) -> float:
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
    best = fastest(actions, repeats)
    # A copy moves two elements: two perturbed copies and the update are three of them.
    floor = 3 * best["normals"] + best["words"] + 3 * best["copy"] + STATE_TRAFFIC[method] / 2 * best["wide copy"]
    return (best["step"] - 2 * best["loss"]) / floor


def step_over_own_floor(method: str, size: int = SIZES[-1], repeats: int = 3) -> float:
    """Seconds of a step over those of its own random numbers, and of its passes over parameters and state."""
    import torch

    torch.set_num_threads(1)
    p = parameter(size)
    loss, optimizer = CountedLoss(p), make(method, [p])
    optimizer.step(loss)
    loss.calls = 0
    with random_calls() as calls:
        optimizer.step(loss)
    source, sink = torch.zeros(size), torch.zeros(size)
    actions = {
        "step": lambda: optimizer.step(loss),
        "loss": loss,
        "copy": lambda: sink.copy_(source),
        "numbers": lambda: [draw(*args, **kwargs) for draw, args, kwargs in calls],
    }
    forwards, best = loss.calls, fastest(actions, repeats)
    copies = count(method)["passes"] / STEPS / 2 + state_bytes(method, "float32") / 4
    return (best["step"] - forwards * best["loss"]) / (best["numbers"] + copies * best["copy"])


def fastest(actions: dict, repeats: int) -> dict[str, float]:
    """Seconds of each action, the best of several turns after one that is not counted."""
    best = dict.fromkeys(actions, float("inf"))
    for turn in range(repeats + 1):
        for name, action in actions.items():
            start = time.perf_counter()
            action()
            if turn:
                best[name] = min(best[name], time.perf_counter() - start)
    return best


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
    row = memory_row(method, torch.float32, state_dtype, **required(method))
    return round(row.measured / row.predicted, 2)
