"""SIGKILL a sweep again and again, each time when it has got further, and look whether a record was lost.

    python -m tests.lab.store.kills --kills 50

A kill ends the command and its workers alike, at a moment that a seeded generator draws after the store has grown.
Records that a reader has seen must stay as they were; the finished sweep must equal one that nothing killed. One kill
takes about a second of one core, most of it the start of Python. `make kills` makes 50.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from helene.lab.runs.store import Store, StoreError
from helene.lab.sweeps.executors import InlineExecutor
from helene.lab.sweeps.sweep import sweep
from tests.lab.lab_cells import EXPERIMENT, square

PATIENCE_SECONDS = 120.0  # for one more record


def attack(folder: Path, kills: int, seed: int = 0) -> tuple[int, int]:
    """Kill a sweep so often, then let it finish.

    Args:
        folder: Empty; the store goes there.
        kills: How often.
        seed: Of the moments.

    Returns:
        How many kills there were, and how many records there are at the end.

    Raises:
        AssertionError: If a record was lost or changed, or the end differs from that of an undisturbed sweep.
    """
    path, log, draw = folder / "s.sqlite", folder / "log", random.Random(seed)
    cells = [{"i": i, "sleep": 0.05, "log": str(log)} for i in range(8 * kills + 8)]
    command = [sys.executable, "-m", "tests.lab.lab_cells", str(path), str(log), str(len(cells))]
    kept: dict[str, str] = {}
    for number in range(kills):
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0
        ) as process:
            _wait_for_progress(path, len(kept), process)
            time.sleep(draw.uniform(0.0, 0.1))
            assert process.poll() is None, f"the sweep ended before kill {number + 1}; give it more cells"
            os.killpg(process.pid, signal.SIGKILL)
        found = _read(path)
        lost = [key for key, text in kept.items() if found.get(key) != text]
        assert not lost, f"kill {number + 1} lost {len(lost)} of {len(kept)} records, {lost[0]} the first"
        kept = found
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with Store(folder / "undisturbed.sqlite") as store:
        alone = sweep(
            EXPERIMENT, [{**c, "sleep": 0.0} for c in cells], square, store, progress=False, executor=InlineExecutor()
        )
    with Store(path, read_only=True) as store:
        ended = sorted(store.records(EXPERIMENT), key=lambda r: r.config["i"])
        assert all(_read(path).get(key) == text for key, text in kept.items())
    assert [(r.config["i"], r.result["steps"]) for r in ended] == [(r.config["i"], r.result["steps"]) for r in alone]
    return kills, len(ended)


def _read(path: Path) -> dict[str, str]:
    with Store(path, read_only=True) as store:
        return {record.key: record.comparable() for record in store.records(EXPERIMENT)}


def _wait_for_progress(path: Path, known: int, process: subprocess.Popen[bytes]) -> None:
    limit = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < limit and process.poll() is None:
        try:
            with Store(path, read_only=True) as store:
                if len(store) > known:
                    return
        except StoreError:  # it is not there yet
            pass
        time.sleep(0.02)
    raise AssertionError(
        f"no record beyond {known} within {PATIENCE_SECONDS:.0f} s; the sweep's exit: {process.poll()}"
    )


def main(argv: list[str] | None = None) -> int:
    """Print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        kills, records = attack(Path(folder), arguments.kills, arguments.seed)
    print(f"{kills} kills, {records} records, none lost, none changed, none made otherwise than undisturbed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
