"""One figure of each kind; as a script, prints the digests of their bytes (run in a fresh process by the test)."""

from __future__ import annotations

import hashlib
import json
import sys

import numpy as np

from helene.lab.report.figures import Line, bar_figure, line_figure
from helene.lab.scaling.scaling_figure import ScalingSeries, scaling_figure


def scaling(**changes):
    x = [4.0, 16, 64, 256]
    rng = np.random.default_rng(0)
    samples = [
        (k * x_i * np.exp(0.2 * rng.standard_normal(6))).tolist() for k, x_i in zip((3, 3, 3, 3), x, strict=True)
    ]
    samples[-1] = [float("inf")] * 4 + samples[-1][:2]
    one = {
        "label": "MeZO",
        "x": x,
        "samples": samples,
        "caps": [900.0] * 4,
        "excluded": [True, False, False, False],
        "fitted": [3 * x_i for x_i in x],
        "band": ([2.5 * x_i for x_i in x], [3.5 * x_i for x_i in x]),
        "slope": (1.01, 0.97, 1.05),
        "predicted_slope": 1.0,
    }
    return scaling_figure([ScalingSeries(**{**one, **changes})], xlabel="d", title="Steps")


def all_figures():
    t = np.linspace(1, 10, 50)
    return {
        "scaling": scaling(),
        "lines": line_figure(
            [Line("a", t, 1 / t, (0.9 / t, 1.1 / t)), Line("b", t[:5], 2 / t[:5], style="points")],
            xlabel="t",
            ylabel="gap",
            xlog=True,
            ylog=True,
            marks={"target": 0.2},
        ),
        "bars": bar_figure(
            ["SST-2", "RTE"],
            {"MeZO": [0.9, float("inf")], "HELENE": [0.91, 0.6]},
            xlabel="accuracy",
            intervals={"HELENE": [(0.9, 0.92), (0.5, 0.7)]},
        ),
    }


def digests():
    return {
        name: [hashlib.sha256(data).hexdigest() for data in (drawing.svg.encode(), drawing.png)]
        for name, drawing in all_figures().items()
    }


if __name__ == "__main__":
    print(json.dumps({"digests": digests(), "torch": "torch" in sys.modules}))
