"""The bound under the measured curves: committed medians lie above it, and the report says and draws it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

import synthetic
from helene.lab.scaling.scaling_figure import ScalingSeries, scaling_figure
from synthetic.analysis.least_steps import least_line, least_mean, least_median

RECORDS = Path(synthetic.__file__).parent / "records"


def test_committed_medians_lie_above_the_bound():
    """HELENE and MeZO on quadratics, every cell; one direction per layer, which reads n differences, does not."""
    compared = {"helene": 0, "mezo": 0, "per_layer": 0}
    below = 0
    for method in compared:
        for line in (RECORDS / "standard" / f"{method}.jsonl").read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            config = row.get("config", {})
            if config.get("problem", {}).get("kind") != "quadratic":
                continue
            n, d = row["result"]["problem"]["n"], row["result"]["problem"]["d"]
            median = float(np.median(row["result"]["test"]["steps"]))
            if method == "per_layer":
                assert median >= least_mean(d, config["target"], per_step=n)
                below += median < least_mean(d, config["target"])
            else:
                assert median >= least_mean(d, config["target"]) >= least_median(d, config["target"])
            compared[method] += 1
    assert min(compared.values()) > 20
    assert below > 5


def test_the_line_of_a_grid():
    """d along each axis, the smallest where layers differ; unequal layers share a place."""
    cells = {(2, 4, 8), (4, 4, 16), (4, 4, 14), (2, 8, 16)}
    x, y = least_line(cells, "w", 4, target=0.5)
    assert dict(zip(x, y, strict=True)) == {2.0: 4.0, 4.0: 7.0}
    x, y = least_line(cells, "n", 2, target=0.5)
    assert dict(zip(x, y, strict=True)) == {4.0: 4.0, 8.0: 8.0}


def test_a_bound_is_drawn_and_named():
    one = ScalingSeries("method", [1, 2], [[3], [5]])
    drawings = [scaling_figure([one], xlabel="d", bound=b) for b in (None, ("least", [1, 2], [1, 2]))]
    assert ["least" in d.alt for d in drawings] == [False, True]
