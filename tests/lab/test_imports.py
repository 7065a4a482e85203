"""Who may import what: measuring never needs what draws, drawing never needs torch, records need next to nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

RECORDING = ["canonical", "lock", "records", "store", "provenance", "executors", "progress", "sweep"]
CLUSTER = ["dask_executor", "slurm"]
FITTING = ["cells", "laws", "fits"]
DRAWING = ["drawing", "scaling_figure", "figures", "pages", "report_files"]
DRAWERS = ["matplotlib", "PIL", "jinja2", "markupsafe"]


@pytest.mark.parametrize(
    ("modules", "blocked"),
    [
        (RECORDING, ["torch", "scipy", "rich", *DRAWERS]),
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
