"""Actions of `helene llm` that draw tables, figures and pages, or measure a step; imports wait until one is chosen."""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import Any

from helene.inputs.files import check_apart
from llm_bench.cli import arguments as given
from llm_bench.cli.make import all_failed, executed

_MEASURED = {"engine": "engine_table"} | {name: name for name in ("parallel", "harness", "products", "instructions")}


def table(arguments: argparse.Namespace) -> int:
    """Make a table's runs and write its page."""
    from llm_bench.protocol.paper_tables import TABLES
    from llm_bench.protocol.plan import cells, cells_of_table
    from llm_bench.report import details, figures, ranked, tables

    memory = arguments.which == "memory"
    given.refuse(arguments, ("methods", "tasks", "tunings") if memory else ("shapes", "batches"), arguments.which)
    if memory:
        return _memory(arguments)
    bench, paper = given.bench(arguments), TABLES[arguments.which]
    wanted = [cell for cell in cells_of_table(bench.preset, paper) if cell.kind in bench.models]
    given.check_asked(arguments, wanted, f"table {arguments.which}")
    records = executed(arguments, bench, wanted)
    made = tables.collect(bench, [c for c in cells(bench.preset) if (c.kind, c.task) in paper.columns], records)
    command = given.command(arguments, "table")
    sections = [
        *ranked.ranked_sections(made),
        tables.table_section(bench, made, paper),
        figures.section(made),
        tables.costs_section(made),
        tables.sensitivity_section(made),
        details.cells_section(made),
        tables.facts_section(made, records),
    ]
    _write_page(arguments, "table", f"Table {arguments.which}: {paper.title}", made, sections, command)
    return all_failed(records)


def _memory(arguments: argparse.Namespace) -> int:
    from helene.lab.runs.provenance import public_command
    from helene.lab.runs.store import Store
    from llm_bench.cost import memory_sweep
    from llm_bench.cost.memory_row import ROWS
    from llm_bench.models.loading import check_device
    from llm_bench.models.shapes import rows_and_tokens
    from llm_bench.protocol.execute import experiment
    from llm_bench.protocol.presets import get_preset
    from llm_bench.report import memory_page

    preset = get_preset(arguments.preset).name
    shapes = arguments.shapes.split(",") if arguments.shapes else list(memory_sweep.SHAPES)
    batches = arguments.batches.split(",") if arguments.batches else list(memory_sweep.BATCHES)
    for batch in batches:
        rows_and_tokens(batch)
    if not arguments.draw_only:
        check_device(arguments.device)
    with Store(arguments.store, read_only=arguments.draw_only) as store:
        if not arguments.draw_only:
            memory_sweep.measure_all(
                store,
                ROWS,
                shapes,
                batches,
                device=arguments.device,
                minutes=arguments.minutes,
                say=lambda text: print(text, file=sys.stderr),
            )
        records, runs = store.records(memory_sweep.EXPERIMENT), store.records(experiment(preset))
    if not records and not runs:
        way_out = "leave --draw-only out" if arguments.draw_only else "give it more --minutes"
        raise ValueError(f"{arguments.store} has no peak, and no run of preset {preset}; {way_out}")
    words = ["helene", "llm", "table", "memory", "--device", arguments.device, "--shapes", ",".join(shapes)]
    words += ["--batches", ",".join(batches), "--store", str(arguments.store)]
    command = public_command(words)
    print(memory_page.write(arguments.out, records, runs, command))
    return 0


def figure(arguments: argparse.Namespace) -> int:
    """Make a figure's runs and write its page."""
    from llm_bench.protocol.plan import cells
    from llm_bench.report import changes, details, figures, ranked, tables

    bench = given.bench(arguments, figures.FIGURES[arguments.which])
    wanted = cells(bench.preset, bench.models)
    compared = [cell for cell in wanted if cell.method in figures.FIGURES[arguments.which]]
    given.check_asked(arguments, compared, f"figure {arguments.which}")
    records = executed(arguments, bench, wanted)
    made, left_out = tables.collect(bench, wanted, records), list[str]()
    if not arguments.tasks:
        made, left_out = figures.with_own_runs(made, arguments.which)
    command = given.command(arguments, "figure")
    sections = [
        *ranked.ranked_sections(made),
        figures.section(made, figures.TITLES[arguments.which], left_out),
        tables.costs_section(made),
        details.cells_section(made),
        tables.facts_section(made, records),
    ]
    said = changes.answer(made, arguments.which)
    _write_page(arguments, "figure", figures.TITLES[arguments.which], made, sections, command, said)
    return all_failed(records)


def _write_page(
    arguments: argparse.Namespace, what: str, title: str, made: Any, sections: list[Any], command: str, said: str = ""
) -> None:
    from llm_bench.report import writing

    name = f"{what}-{arguments.which}-{arguments.preset}"
    title = f"{title} (preset {arguments.preset})"
    files = writing.write(arguments.out, name, title=title, table=made, sections=sections, command=command, said=said)
    print(files)


def profile(arguments: argparse.Namespace) -> int:
    """Print where a step's time goes."""
    import json

    from helene.inputs.files import write_text
    from helene.lab.runs.provenance import provenance
    from llm_bench.cost import step_profile
    from llm_bench.models.loading import check_device

    profiles: dict[str, Any]
    if arguments.json is not None:
        check_apart(arguments.json, getattr(arguments, "config", None))
    if arguments.shape:
        check_device(arguments.device)
        dtype = "bfloat16" if given.device_kind(arguments) == "cuda" else "float32"
        place = (dtype, arguments.device, arguments.steps)
        if arguments.device == "cpu":
            _say_how_long(arguments)
        profiles = {
            m: step_profile.shape_profile(arguments.shape, arguments.batch, m, *place) for m in arguments.method
        }
        for method, profiled in profiles.items():
            print(f"{arguments.shape}, {arguments.batch}, {method}\n{step_profile.shown(profiled)}\n")
    else:
        if not arguments.model or arguments.data is None:
            raise ValueError("profile looks at a run's step: give it --model and --data, or --shape")
        profiles = step_profile.run_profile(*given.run(arguments), arguments.steps)
        print(step_profile.shown(profiles))
    if arguments.json is not None:
        write_text(arguments.json, json.dumps({"provenance": provenance(), **profiles}, indent=1))
    return 0


def _say_how_long(arguments: argparse.Namespace) -> None:
    from helene.lab.sweeps.progress import readable_seconds
    from llm_bench.cost.step_profile import least_seconds

    least = len(arguments.method) * least_seconds(arguments.shape, arguments.batch, arguments.steps)
    print(
        f"steps of {arguments.shape}, {arguments.batch} tokens, on a CPU: {readable_seconds(least)} at least; fewer "
        "--steps, a smaller --shape or --batch, or --device cuda take less",
        file=sys.stderr,
        flush=True,
    )


def measure(arguments: argparse.Namespace) -> int:
    """Measure what this machine takes, and keep it as records."""
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise ValueError(f"{err}; --out is a folder that is made where it is missing") from err
    return int(importlib.import_module(f"llm_bench.cost.{_MEASURED[arguments.what]}").main(arguments))


def pages(arguments: argparse.Namespace) -> int:
    """Draw the committed rows."""
    from llm_bench.cli.committed_pages import draw_all

    try:
        return draw_all(arguments.out)
    except OSError as err:
        raise ValueError(str(err)) from err


def sensitivity(arguments: argparse.Namespace) -> int:
    """Print the table of step sizes' sensitivity, or put it into a page."""
    from helene.inputs.files import write_text
    from llm_bench.report.page_tables import begin, end, put_between_marks
    from llm_bench.report.sensitivity import MARKS, table_of

    if arguments.write is not None:
        for path in arguments.records:
            check_apart(arguments.write, path)
    table = table_of(arguments.records, say=lambda text: print(text, file=sys.stderr))
    if arguments.write is None:
        print(table)
        return 0
    try:
        there = arguments.write.exists()
        page = arguments.write.read_text(encoding="utf-8") if there else f"{begin(MARKS)}\n{end(MARKS)}\n"
        write_text(arguments.write, put_between_marks(page, MARKS, table))
    except (OSError, ValueError) as err:
        raise ValueError(f"{arguments.write}: {err}") from err
    return 0


def demo(arguments: argparse.Namespace) -> int:
    """Make the demo; print where its page is."""
    from llm_bench.cli.demo import demo as make

    print(make(arguments.out, arguments.jobs))
    return 0
