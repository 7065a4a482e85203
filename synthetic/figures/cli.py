"""``helene scaling figure NAME`` and ``helene scaling agnb``."""

from __future__ import annotations

import argparse
import importlib
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from helene.lab.commands import add_command
from helene.lab.runs.records import Record

FIGURES = ("toy", "ablation", "floor", "triggers")
Write = Callable[[Path, Sequence[Record], str, Mapping[str, Any]], tuple[str, bool]]


def add_figure_commands(subparsers: Any) -> None:
    """Register ``figure`` and ``agnb`` beneath ``helene scaling``."""
    one = add_command(
        subparsers,
        "figure",
        "remake a figure of the paper: toy, ablation, floor, triggers",
        more="The paper gives no settings, so they are our own. One sentence says what the figure shows against what "
        "the paper says. Each takes half a minute of one core, triggers two and a half; writes "
        "OUT/scaling/figures/NAME.html.",
        example="helene scaling figure toy",
    )
    one.add_argument("name", choices=FIGURES, help="which figure")
    two = add_command(
        subparsers,
        "agnb",
        "bias, spread and limit law of A-GNB against the batch size",
        more="Its rivals and the true diagonal stand beside it. It takes half a minute of one core and writes "
        "OUT/scaling/agnb.html.",
        example="helene scaling agnb --out reports",
    )
    for parser, func in ((one, figure), (two, agnb)):
        parser.add_argument("--out", type=Path, default=Path("reports"), help="folder of the reports")
        parser.add_argument(
            "--jobs", type=int, default=os.cpu_count() or 1, help="worker processes (default: all cores)"
        )
        parser.set_defaults(func=func)


def figure(arguments: argparse.Namespace) -> int:
    """Measure what is missing for a figure, then draw it."""
    module = importlib.import_module(f"synthetic.figures.{arguments.name}")
    words = ["helene", "scaling", "figure", arguments.name]
    return measure(
        f"figure-{arguments.name}",
        module.configs(),
        module.run,
        cost=module.cost,
        arguments=arguments,
        words=words,
        write=_figure_page,
        page=f"figures/{arguments.name}.html",
    )


def _figure_page(out: Path, records: Sequence[Record], command: str, provenance: Mapping[str, Any]) -> tuple[str, bool]:
    from synthetic.figures.pages import write_figure

    name = records[0].experiment.removeprefix("figure-")
    page = importlib.import_module(f"synthetic.figures.{name}_page")
    return write_figure(out, page.remake(records), records, command, provenance)


def agnb(arguments: argparse.Namespace) -> int:
    """Measure what is missing about A-GNB, then write its page."""
    from synthetic.estimators.design import configs, cost
    from synthetic.estimators.run import run

    def write(out: Path, records: Sequence[Record], command: str, provenance: Mapping[str, Any]) -> tuple[str, bool]:
        from synthetic.estimators.page import write_page

        return write_page(out, records, command, provenance)

    words = ["helene", "scaling", "agnb"]
    return measure("agnb", configs(), run, cost=cost, arguments=arguments, words=words, write=write, page="agnb.html")


def measure(
    experiment: str,
    configs: Sequence[dict[str, Any]],
    run: Callable[[dict[str, Any]], Mapping[str, Any]],
    *,
    cost: Callable[[dict[str, Any]], float],
    arguments: argparse.Namespace,
    words: Sequence[str],
    write: Write,
    page: str,
) -> int:
    """Run the missing cells of an experiment, write its page, print its sentence and where the page is.

    Raises:
        ValueError: If jobs is below 1.
    """
    from helene.lab.runs.provenance import provenance, public_command
    from helene.lab.runs.records import config_key
    from helene.lab.runs.store import Store
    from helene.lab.sweeps.progress import readable_seconds
    from helene.lab.sweeps.sweep import sweep

    if arguments.jobs < 1:
        raise ValueError(f"--jobs must be at least 1, got {arguments.jobs}; the number of cores is a good choice")
    command = public_command([*words, "--out", str(arguments.out)])
    facts = provenance(shlex.split(command))
    with Store(arguments.out / "scaling" / "records.sqlite") as store:
        done = {record.key for record in store.records(experiment) if not record.failed}
        missing = [config for config in configs if config_key(config) not in done]
        about = (
            f"at most about {readable_seconds(sum(map(cost, missing)) / arguments.jobs)} on {arguments.jobs} idle cores"
        )
        about = f"{len(missing)} of {len(configs)} cells to run, {about}" if missing else "nothing to run"
        print(f"{experiment}: {about}", file=sys.stderr)
        records = sweep(experiment, configs, run, store, jobs=arguments.jobs, provenance=facts, cost=cost)
    answer, sound = write(arguments.out, records, command, facts)
    print(answer)
    print(arguments.out / "scaling" / page)
    return 0 if sound else 1
