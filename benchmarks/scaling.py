"""Steps and forwards to the target on small losses, each method at its own tuned step size, and what they scale with.

Everything is keyed by seeds, so a change here is a change of algorithm. The full answer is `helene scaling`.
"""

from __future__ import annotations

import itertools
import math

from .common import Lookup, subject, values

GRID = [(1, 8), (1, 32), (4, 8), (4, 32)]
LAYERS = [f"{n}x{w}" for n, w in GRID]
TUNED = ["mezo", "per_layer", "helene"]
PRESETS = {"quadratic": "quick", "log_cosh": "standard"}  # where a family's cells are found


class _Cells(Lookup):
    def setup_cache(self) -> dict:
        cells = values(median_steps_and_forwards, itertools.product(PRESETS, TUNED, LAYERS))
        return cells | values(
            lambda *key: exponents([cells[*key, n] for n in LAYERS]), itertools.product(PRESETS, TUNED)
        )


class ToTarget(_Cells):
    """Medians until the loss gap is a hundredth of the first, n layers of width w."""

    params = (list(PRESETS), TUNED, LAYERS)
    param_names = ("family", "method", "layers")

    def track_steps(self, cache: dict, family: str, method: str, layers: str) -> float:
        return cache[family, method, layers][0]

    def track_forwards(self, cache: dict, family: str, method: str, layers: str) -> float:
        return cache[family, method, layers][1]

    track_steps.unit = "steps"
    track_forwards.unit = "forwards"


class Exponents(_Cells):
    """T ~ (max d_i)^alpha d^beta fitted to the steps of the four cells of a family."""

    params = (list(PRESETS), TUNED)
    param_names = ("family", "method")
    unit = "1"

    def track_alpha(self, cache: dict, family: str, method: str) -> float:
        return cache[family, method][0]

    def track_beta(self, cache: dict, family: str, method: str) -> float:
        return cache[family, method][1]


def median_steps_and_forwards(family: str, method: str, layers: str) -> tuple[float, float]:
    """Medians over the test seeds, at the step size that was best on others."""
    import numpy as np

    with subject():
        from helene.noise import NOISE_VERSION
        from synthetic.design import load
        from synthetic.run import run_cell
    wanted = family, method, [[int(number) for number in layers.split("x")]]
    for cell in load(PRESETS[family], NOISE_VERSION).cells:
        config = cell.config
        if (cell.family, config["method"], config["problem"]["layers"]) == wanted and "control" not in config:
            result = run_cell(config)
            steps = float(np.median(result["test"]["steps"]))
            return steps, steps * result["forwards_per_step"]
    raise NotImplementedError(f"the preset has no {method} on {layers} of {family}")


def exponents(cells: list) -> tuple[float, float]:
    """Alpha and beta by least squares in logs; a cell without a number says why there is no fit."""
    import numpy as np

    for missing in (value for value in cells if isinstance(value, Exception)):
        raise missing
    rows = np.array([(math.log(w), math.log(n * w), 1.0) for n, w in GRID])
    alpha, beta, _ = np.linalg.lstsq(rows, np.log([steps for steps, _ in cells]), rcond=None)[0]
    return round(float(alpha), 4), round(float(beta), 4)
