"""Directions: how fast z is made, and against torch's own generator, which stores nothing to regenerate from."""

from __future__ import annotations

import statistics
import time

from .common import subject

SIZE = 1 << 22


class Normals:
    """Standard normals on one core."""

    params = ([1 << 12, SIZE],)
    param_names = ("size",)
    warmup_time = 0.5
    rounds = 1
    repeat = (2, 5, 2.0)

    def setup(self, size: int) -> None:
        import torch

        torch.set_num_threads(1)
        with subject():
            from helene.noise import normal
        self.normal = normal

    def time_4M_normals(self, size: int) -> None:
        for step in range(SIZE // size):
            self.normal(0, step, 0, 1, 0, size)


class AgainstTorch:
    """Both generators in turns in one process; the median of the ratios."""

    version = "1"
    unit = "ratio"

    def setup(self) -> None:
        with subject():
            from helene.noise import normal
        self.normal = normal

    def track_time_over_that_of_torch_randn(self) -> float:
        import torch

        torch.set_num_threads(1)
        ratios = []
        for step in range(9):
            start = time.perf_counter()
            torch.randn(SIZE)
            middle = time.perf_counter()
            self.normal(0, step, 0, 1, 0, SIZE)
            ratios.append((time.perf_counter() - middle) / (middle - start))
        return statistics.median(ratios[1:])
