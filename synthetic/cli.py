"""``helene scaling``: measure how steps scale with dimension, write the report."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from helene.lab.commands import Help, add_command
from synthetic.design import Config, Design, load, presets
from synthetic.figures.cli import add_figure_commands

_EPILOG = """\
examples:
  helene scaling --preset quick                  half a minute
  helene scaling --preset full --jobs 8          the records behind docs/findings/scaling.md
  helene scaling agnb                            what A-GNB estimates

presets:
  quick      half a minute: quadratics up to d = 512, HELENE and the two controls
  standard   minutes: quadratics and log-cosh up to d = 1024, real data, all methods, two starts
  full       some 20 minutes on two cores: thirteen more families, matched controls, d up to 4096 and, reduced, 10^6
  or the path of a .toml file of your own, see docs/scaling.md

what is written, all under OUT/scaling:
  index.html, summary.json, series.jsonl, exponents.csv, runs.parquet, figures/, records.sqlite

A run that is stopped goes on where it was: finished cells are in records.sqlite and are never run twice.

exit codes:
  0  done, and both controls came out as theory predicts
  1  a cell failed, or a control is off, so that the report flags itself
  2  bad usage or bad input
"""
_SECONDS_TO_START = 4.0


def add_commands(subparsers: Any) -> None:
    """Register ``scaling``; called by the command ``helene``."""
    parser = subparsers.add_parser(
        "scaling",
        help="measure how steps scale with dimension, write the report",
        description="Measure whether the number of steps follows the largest layer or all parameters. It does so for "
        "HELENE, MeZO, the paper's idealised update and others. The report answers in one sentence.",
        epilog=_EPILOG,
        formatter_class=Help,
    )
    parser.add_argument(
        "--preset", default="standard", help=f"{', '.join(presets())} or a .toml file (default: standard)"
    )
    parser.add_argument("--out", type=Path, default=Path("reports"), help="folder of the reports")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="worker processes (default: all cores)")
    parser.add_argument(
        "--scheduler", metavar="ADDRESS", help="of a Dask cluster, whose workers take the place of --jobs"
    )
    parser.set_defaults(func=scaling)
    parts = parser.add_subparsers(title="parts of their own", metavar="PART")
    add_figure_commands(parts)
    timing = add_command(
        parts,
        "speed",
        "time the simulator and the sweeps on an idle machine",
        more="It takes some ten minutes and writes JSON lines.",
        example="helene scaling speed speed.jsonl",
    )
    timing.add_argument("path", metavar="FILE", type=Path, help="JSON lines to write")
    timing.set_defaults(func=speed)


def scaling(arguments: argparse.Namespace) -> int:
    """Run what is missing, then write the report; the exit code is in the help."""
    from helene.lab.report.report_files import write_report_text
    from helene.lab.runs.provenance import provenance, public_command
    from helene.lab.runs.store import Store
    from helene.lab.sweeps.dask_executor import DaskExecutor
    from helene.lab.sweeps.progress import readable_seconds
    from helene.lab.sweeps.sweep import sweep
    from helene.noise import NOISE_VERSION
    from synthetic.analysis.results import check_readable
    from synthetic.run import check, cost, run

    design = load(arguments.preset, NOISE_VERSION)
    if arguments.jobs < 1:
        raise ValueError(f"--jobs must be at least 1, got {arguments.jobs}; the number of cores is a good choice")
    command = public_command(["helene", "scaling", "--preset", arguments.preset, "--out", str(arguments.out)])
    folder = arguments.out / "scaling"
    write_report_text(folder / ".writable", "")  # an unwritable folder must be known before the work, not after it
    (folder / ".writable").unlink()
    facts = provenance(shlex.split(command))
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(Store(folder / "records.sqlite"))
        executor, places, where = None, arguments.jobs, f"{arguments.jobs} idle cores"
        if arguments.scheduler is not None:
            executor = stack.enter_context(DaskExecutor(arguments.scheduler))
            places = executor.slots()
            where = f"the {places} places of that cluster" if places else "each place, once the first worker has joined"
        number, missing = _missing(design, store)
        check(missing)
        seconds = sum(cost(config) for config in missing) / max(places, 1) + _SECONDS_TO_START
        about = "nothing to run"
        if missing:
            about = f"{number - len(missing)} of {number} cells are there already; "
            about += f"about {readable_seconds(seconds)} on {where}"
        print(f"{design.title}\n{about}; results go to {folder}", file=sys.stderr)
        jobs = arguments.jobs
        records = sweep(
            "scaling", design.configs, run, store, jobs, facts, cost=cost, executor=executor, reads=check_readable
        )
    from synthetic.report.write import write_report

    answer, sound = write_report(arguments.out, design, records, command, facts)
    print(answer)
    print(folder / "index.html")
    return 0 if sound else 1


def speed(arguments: argparse.Namespace) -> int:
    """Measure the speed of the sweeps."""
    from synthetic.measure import measure_speed

    measure_speed(arguments.path)
    return 0


def _missing(design: Design, store: Any) -> tuple[int, list[Config]]:
    """How many cells there are, blocks that share some counted once, and those without a record."""
    from helene.lab.runs.records import config_key

    done = {record.key for record in store.records("scaling") if not record.failed}
    cells = {config_key(config): config for config in design.configs}
    return len(cells), [config for key, config in cells.items() if key not in done]
