"""Cells for the sweep tests, in a module that spawned workers can import; as a script, a sweep to be killed."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

EXPERIMENT = "squares"


def log_start(config):
    """Append this cell and process to the config's log: what ran how often, and where."""
    with open(config["log"], "a") as file:
        file.write(f"{config['i']} {os.getpid()}\n")


def square(config):
    if "log" in config:
        log_start(config)
    time.sleep(config.get("sleep", 0.0))
    return {"status": "reached", "steps": config["i"] ** 2, "miss": float("inf")}


def unhappy(config):
    """Fails in the way that the config names, until the file ``mended`` exists."""
    if Path(config["mended"]).exists():
        return {"status": "reached", "steps": config["i"]}
    match config["how"]:
        case "raise":
            raise ZeroDivisionError("one over\nnothing")
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            os._exit(7)
        case "list":
            return [1, 2]
        case "object":
            return {"status": "reached", "steps": object()}
        case "lambda":
            return {"status": "reached", "steps": lambda: 0}
    return {"status": "diverged"}


def environment(config):
    return {"omp": os.environ.get("OMP_NUM_THREADS"), "torch": "torch" in sys.modules}


if __name__ == "__main__":
    from helene.lab.runs.store import Store
    from helene.lab.sweeps.sweep import sweep

    cells = [{"i": i, "sleep": 0.05, "log": sys.argv[2]} for i in range(int(sys.argv[3]))]
    with Store(sys.argv[1]) as store:
        sweep(EXPERIMENT, cells, square, store, jobs=2, provenance={"commit": None})
