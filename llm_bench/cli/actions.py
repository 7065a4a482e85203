"""What each action of `helene llm` does; imports wait until it is chosen."""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import Any

from helene.inputs.files import check_apart
from llm_bench.cli import arguments as given

_RUN = "llm/run"  # the experiment of runs that are made one by one


def run(arguments: argparse.Namespace) -> int:
    """Make one run, unless the store has it; print its result."""
    from functools import partial

    from helene.lab.runs import canonical
    from helene.lab.runs.store import Store
    from helene.lab.sweeps.executors import InlineExecutor
    from helene.lab.sweeps.sweep import sweep
    from llm_bench.runs.run import run as make

    config, env = given.run(arguments)
    if arguments.store is None:
        print(canonical.dumps(make(config.to_dict(), env)))
        return 0
    with Store(arguments.store) as store:
        call = partial(make, env=env)
        (record,) = sweep(_RUN, [config.to_dict()], call, store, executor=InlineExecutor(), progress=False)
    print(canonical.dumps(record.result))
    if record.failed:
        print(f"helene: the run failed: {record.result['message']}", file=sys.stderr)
    return int(record.failed)


def sweep(arguments: argparse.Namespace) -> int:
    """Make the runs of a preset that the store lacks; 1 where all that there are failed."""
    from llm_bench.protocol.plan import cells

    bench = given.bench(arguments)
    wanted = cells(bench.preset, bench.models)
    given.check_asked(arguments, wanted, "the sweep")
    return _all_failed(_execute(arguments, bench, wanted))


def _execute(arguments: argparse.Namespace, bench: Any, wanted: Any) -> Any:
    """Make the runs, unless only drawing was asked for; returns the records."""
    from helene.lab.runs.store import Store
    from llm_bench.protocol.execute import execute, experiment
    from llm_bench.protocol.recorded import check_whole

    only_draw = getattr(arguments, "draw_only", False)
    with Store(arguments.store, read_only=only_draw) as store:
        check_whole(store.records(experiment(bench.preset.name)))
        if not only_draw:
            left = execute(bench, wanted, store, minutes=arguments.minutes, executor=given.executor(arguments))
            print(f"{left} runs left" if left else "all runs are there", file=sys.stderr)
        return store.records(experiment(bench.preset.name))


def _all_failed(records: Any) -> int:
    """1, and why on stderr, where there are records and every one is of a run that failed."""
    if not records or not all(record.failed for record in records):
        return 0
    print(f"helene: all {len(records)} runs failed: {records[-1].result.get('message')}", file=sys.stderr)
    return 1


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
    records = _execute(arguments, bench, wanted)
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
    return _all_failed(records)


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
    records = _execute(arguments, bench, wanted)
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
    return _all_failed(records)


def _write_page(
    arguments: argparse.Namespace, what: str, title: str, made: Any, sections: list[Any], command: str, said: str = ""
) -> None:
    from llm_bench.report import writing

    name = f"{what}-{arguments.which}-{arguments.preset}"
    title = f"{title} (preset {arguments.preset})"
    files = writing.write(arguments.out, name, title=title, table=made, sections=sections, command=command, said=said)
    print(files)


def tune(arguments: argparse.Namespace) -> int:
    """Find a step size; print what was tried and the best."""
    from helene.lab.runs.store import Store
    from llm_bench.protocol.presets import BASE_LR, EPS
    from llm_bench.protocol.step_size_search import tune as search
    from llm_bench.report.labels import STATUS_LABELS
    from llm_bench.runs import methods
    from llm_bench.runs.natural_step import natural_step_size

    env = given.environment(arguments)
    if arguments.tuning not in BASE_LR:
        raise ValueError(f"--tuning must be one of {', '.join(BASE_LR)}, got {arguments.tuning!r}")
    eps = EPS[arguments.kind, arguments.tuning] if methods.takes_eps(arguments.method) else None
    natural = natural_step_size(arguments.method, BASE_LR[arguments.tuning])
    settings = {
        "kind": arguments.kind,
        "task": arguments.task,
        "method": arguments.method,
        "tuning": arguments.tuning,
        "eps": eps,
        "lr": natural,
        "steps": 10,
        "eval_every": 10,
        "device": given.device_kind(arguments),
    }
    names = {word.partition("=")[0] for word in arguments.set}
    for name in ("steps", "eval_every", "role", "target"):
        if name in names:
            raise ValueError(f"tune sets {name} itself, from --forwards; leave --set {name}=... out")
    base = given.config(arguments, env, None, settings)
    print(_rows(base, env))
    with Store(arguments.store) as store:
        tuned = search(base, None if "lr" in names else natural, arguments.forwards, env, store)
    for lr, loss, status in tuned.tried:
        print(f"{lr:10.3g}  dev loss {'–' if loss is None else f'{loss:.4f}'}  {STATUS_LABELS.get(status, status)}")
    edge = f", at the edge of what was tried: try further, around --set lr={tuned.lr:g}" if tuned.edge else ""
    print(f"best: lr={tuned.lr:g}{edge} ({tuned.forwards} forwards)")
    return 0


def _rows(config: Any, env: Any) -> str:
    """How many rows a run trains on and chooses by, and where the latter are from."""
    from pathlib import Path

    from llm_bench.data.folder import split_path
    from llm_bench.runs.environment import split_of

    split, said = split_of(config, env), ""
    if config.k is None and split_path(Path(env.data), config.task, "validation") is None:
        said = ", cut from the training rows as there is no validation split; --set num_dev=N cuts fewer"
    return f"rows: {len(split.train)} to train on, {len(split.dev)} of dev{said}"


def estimate(arguments: argparse.Namespace) -> int:
    """Print hours and bytes of a preset."""
    from helene.lab.runs.store import Store
    from helene.lab.sweeps.progress import readable_seconds
    from llm_bench.protocol.estimate import estimate as expect
    from llm_bench.protocol.estimate import size_of
    from llm_bench.protocol.plan import cells, test_runs, tuning_runs
    from llm_bench.protocol.work import counted
    from llm_bench.runs.predicted_memory import predict_run

    bench = given.bench(arguments, check=False)
    given.check_asked(arguments, cells(bench.preset, bench.models), "the estimate")
    sizes = {name: size_of(bench.env.source(name)) for name in bench.models.values()}
    records = []
    if arguments.store.exists():
        with Store(arguments.store, read_only=True) as store:
            records = [record for record in store.records() if "model" in record.config and record.config.get("steps")]
    total, runs_in_all = 0.0, 0
    for kind, name in bench.models.items():
        here = cells(bench.preset, (kind,))
        runs = [r for c in here for r in tuning_runs(bench.preset, c, name, bench.device)]
        runs += [r for c in here for r in test_runs(bench.preset, c, name, bench.device, 1.0)]
        runs = [bench.with_settings(run) for run in runs]
        without = {task for task in bench.preset.tasks[kind] if not _has_rows(kind, task, runs, bench.env)}
        expected = expect(
            [run for run in runs if run.task not in without],
            sizes,
            records,
            lambda c: predict_run(c, bench.env.source(c.model)).total,
            lambda c: counted(c, bench.env),
        )
        total += expected.seconds
        runs_in_all += expected.runs
        print(
            f"{kind}, {name}: {expected.runs} runs, {readable_seconds(expected.seconds)} ({expected.source} speed), "
            f"{expected.bytes / 2**30:.1f} GiB at most"
        )
    if not runs_in_all:
        raise ValueError(
            f"{arguments.data} has the rows of no task that was asked for; fill it, or give another --data"
        )
    print(f"in all {readable_seconds(total)} one after the other, loading and evaluation included")
    return 0


def _has_rows(kind: str, task: str, runs: list[Any], env: Any) -> bool:
    """Whether the data folder has what a task's runs are drawn from; told where it has not."""
    from llm_bench.runs.environment import split_of

    try:
        for run in runs:
            if run.task == task:
                split_of(run, env)
                break
    except (ValueError, FileNotFoundError) as err:
        print(f"{kind} {task} is left out: {err}", file=sys.stderr)
        return False
    return True


def fetch(arguments: argparse.Namespace) -> int:
    """Fill the data folder from the Hub."""
    from llm_bench.data.fetch import fetch as load
    from llm_bench.tasks import get_task, task_names

    every = dict.fromkeys((*task_names("masked"), *task_names("causal")))
    for name in arguments.tasks or every:
        kind = "masked" if name in task_names("masked") else "causal"
        for path in load(get_task(name, kind), arguments.data):
            print(path)
    return 0


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


def measure(arguments: argparse.Namespace) -> int:
    """Measure what this machine takes, and keep it as records."""
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise ValueError(f"{err}; --out is a folder that is made where it is missing") from err
    return int(importlib.import_module(f"llm_bench.cost.{_MEASURED[arguments.what]}").main(arguments))


_MEASURED = {"engine": "engine_table"} | {name: name for name in ("parallel", "harness", "products", "instructions")}


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
