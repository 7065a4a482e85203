"""Time of an optimizer step beyond the forwards, over sizes and dtypes, and as a multiple of its floor."""

from __future__ import annotations

import statistics
import time

from .common import CountedLoss, make, parameter

TIMED = ["MeZO", "Helene", "ZOAdam"]


class Step:
    """Five steps on one core; the loss reads 1,024 elements, so that the step is the optimizer's own work."""

    params = (TIMED, [10**4, 10**6], ["float32", "bfloat16"])
    param_names = ("method", "size", "dtype")
    warmup_time = 0.5
    rounds = 1
    repeat = (2, 5, 3.0)

    def setup(self, method: str, size: int, dtype: str) -> None:
        import torch

        torch.set_num_threads(1)
        self.p = parameter(size, dtype)
        self.loss = CountedLoss(self.p)
        self.optimizer = make(method, [self.p])
        self.optimizer.step(self.loss)

    def time_5_steps(self, method: str, size: int, dtype: str) -> None:
        for _ in range(5):
            self.optimizer.step(self.loss)


class StepOverFloor:
    """A step over 4 million float32 parameters against its floor, in turns in one process.

    The floor: its normals at the generator's rate, plus its passes over memory at copy bandwidth.
    """

    params = (TIMED,)
    param_names = ("method",)
    version = "1"
    unit = "ratio"
    timeout = 300

    def track_step_over_floor(self, method: str) -> float:
        import torch

        from helene import noise
        from helene.probe import chunks

        torch.set_num_threads(1)
        size = 1 << 22
        p = parameter(size)
        loss, optimizer = CountedLoss(p), make(method, [p])
        optimizer.step(loss)
        source, sink = torch.zeros(size), torch.zeros(size)
        state = sum(v.numel() for v in optimizer.state[p].values() if isinstance(v, torch.Tensor) and v.dim())
        copies = 3 + state / size  # two perturbed copies; theta and each state tensor read and written once
        ratios = []
        for step in range(6):
            start = time.perf_counter()
            optimizer.step(loss)
            stepped = time.perf_counter()
            for _ in range(3):
                for low, high in chunks(size):
                    noise.normal(0, step, 0, 1, low, high - low)
            drawn = time.perf_counter()
            sink.copy_(source)
            copied = time.perf_counter()
            ratios.append((stepped - start) / (drawn - stepped + copies * (copied - drawn)))
        return statistics.median(ratios[1:])
