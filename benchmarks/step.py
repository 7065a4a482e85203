"""Time of an optimizer step beyond the forwards, over sizes and dtypes, and as a multiple of its floor."""

from __future__ import annotations

from .common import REQUIRED, CountedLoss, make, parameter

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
        self.optimizer = make(method, [self.p], rounding="stochastic")
        self.optimizer.step(self.loss)

    def time_5_steps(self, method: str, size: int, dtype: str) -> None:
        for _ in range(5):
            self.optimizer.step(self.loss)


class StepOverFloor:
    """A step over 10 million float32 parameters against its floor, in turns in one process.

    The floor: its normals at the generator's rate, plus its passes over memory at copy bandwidth.
    """

    params = (["MeZO", "Helene"],)
    param_names = ("method",)
    version = "1"
    unit = "ratio"
    timeout = 300

    def track_step_over_floor(self, method: str) -> float:
        import torch

        try:
            from helene.lab.costs import step_cost
        except ImportError as error:
            raise NotImplementedError(str(error)) from None
        torch.set_num_threads(1)
        return step_cost(method).ratio


class PeakBytes:
    """Measured over predicted bytes of a step beyond the parameters; 1 is a prediction that holds."""

    params = (["MeZO", "Helene"], ["float32", "8bit"])
    param_names = ("method", "state_dtype")
    version = "1"
    unit = "ratio"

    def track_measured_over_predicted(self, method: str, state_dtype: str) -> float:
        import torch

        try:
            from helene.lab.costs import memory_row
        except ImportError as error:
            raise NotImplementedError(str(error)) from None
        row = memory_row(method, torch.float32, state_dtype, **REQUIRED.get(method, {}))
        return row.measured / row.predicted
