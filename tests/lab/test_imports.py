"""Who may import what: measuring never needs what draws, drawing never needs torch, records need next to nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

RUNS = [f"runs.{name}" for name in ("canonical", "lock", "records", "store", "provenance")]
SWEEPS = [f"sweeps.{name}" for name in ("executors", "progress", "sweep")]
CLUSTER = ["sweeps.dask_executor", "sweeps.slurm"]
FITTING = [f"scaling.{name}" for name in ("cells", "laws", "fits")]
DRAWING = ["scaling.scaling_figure", *(f"report.{name}" for name in ("drawing", "figures", "pages", "report_files"))]
DRAWERS = ["matplotlib", "PIL", "jinja2", "markupsafe"]


@pytest.mark.parametrize(
    ("modules", "blocked"),
    [
        ([*RUNS, *SWEEPS], ["torch", "scipy", "rich", *DRAWERS]),
        (CLUSTER, ["torch", "scipy", "rich", "dask", "distributed", *DRAWERS]),
        (FITTING, ["torch", *DRAWERS]),
        (DRAWING, ["torch", "rich"]),
        (["transformer"], ["scipy", "rich", *DRAWERS]),
    ],
    ids=["recording", "cluster", "fitting", "drawing", "transformer"],
)
def test_imports_with_the_forbidden_names_blocked(modules, blocked):
    code = f"import sys\nfor name in {blocked}: sys.modules[name] = None\n"
    code += "".join(f"import helene.lab.{module}\n" for module in modules)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
