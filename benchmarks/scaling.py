"""Steps to the target on small quadratics, each method at its own tuned step size, and what they scale with.

Everything is keyed by seeds, so a change here is a change of algorithm. The full answer is `helene scaling`.
"""

from __future__ import annotations

import math

from .common import Lookup, subject, values

GRID = [(1, 8), (1, 32), (4, 8), (4, 32)]
TUNED = ["mezo", "per_layer", "helene"]


class _Cells(Lookup):
    def setup_cache(self) -> dict:
        steps = values(median_steps, ((m, f"{n}x{w}") for m in TUNED for n, w in GRID))
        return steps | values(lambda m: exponents([steps[m, f"{n}x{w}"] for n, w in GRID]), ((m,) for m in TUNED))


class StepsToTarget(_Cells):
    """Median steps until the loss gap is a hundredth of the first, n layers of width w."""

    params = (TUNED, [f"{n}x{w}" for n, w in GRID])
    param_names = ("method", "layers")
    unit = "steps"

    def track_steps(self, cache: dict, method: str, layers: str) -> float:
        return cache[method, layers]


class Exponents(_Cells):
    """T ~ (max d_i)^alpha d^beta fitted to the four cells above."""

    params = (TUNED,)
    param_names = ("method",)
    unit = "1"

    def track_alpha(self, cache: dict, method: str) -> float:
        return cache[(method,)][0]

    def track_beta(self, cache: dict, method: str) -> float:
        return cache[(method,)][1]


def median_steps(method: str, layers: str) -> float:
    """Median over the test seeds, at the step size that was best on others."""
    import numpy as np

    with subject():
        from helene.noise import NOISE_VERSION
        from synthetic.design import load
        from synthetic.run import run_cell
    n, w = map(int, layers.split("x"))
    for cell in load("quick", NOISE_VERSION).cells:
        if cell.config["method"] == method and cell.config["problem"]["layers"] == [[n, w]]:
            return float(np.median(run_cell(cell.config)["test"]["steps"]))
    raise NotImplementedError(f"the preset has no {method} on {n} layers of width {w}")


def exponents(steps: list[float]) -> tuple[float, float]:
    """Alpha and beta by least squares in logs; a cell without a number says why there is no fit."""
    import numpy as np

    for missing in (value for value in steps if isinstance(value, Exception)):
        raise missing
    rows = np.array([(math.log(w), math.log(n * w), 1.0) for n, w in GRID])
    alpha, beta, _ = np.linalg.lstsq(rows, np.log(steps), rcond=None)[0]
    return round(float(alpha), 4), round(float(beta), 4)
