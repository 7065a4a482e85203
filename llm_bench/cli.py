"""``helene llm``: run, sweep, tune, table, figure, data fetch, profile, estimate, demo."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

KINDS = ("causal", "masked")
_EPILOG = """\
examples:
  helene llm demo                                                       two minutes on a CPU, no download
  helene llm table 2 --preset small --model gemma=DIR --data DIR --store runs.sqlite
  helene llm sweep --preset small --model gemma=DIR --data DIR --store runs.sqlite --minutes 9
  helene llm tune --forwards 8000 --kind causal --task sst2 --model DIR --data DIR --store runs.sqlite
  helene llm run --config run.toml --set lr=1e-6 --model gemma=DIR --data DIR
"""


def add_commands(subparsers: Any) -> None:
    """Add the sub-command to ``helene``'s."""
    llm = subparsers.add_parser(
        "llm",
        help="fine-tune language models: tables, figures, estimates",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = llm.add_subparsers(title="actions", metavar="ACTION", required=True)

    run = actions.add_parser("run", help="one run; its result as JSON on stdout")
    run.add_argument("--config", type=Path, help="a TOML file of settings")
    run.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting, over the file's")
    _where(run, store=False)
    run.set_defaults(func=_run)

    sweep = actions.add_parser("sweep", help="make the runs of a preset that the store lacks")
    _plan(sweep)
    sweep.set_defaults(func=_sweep)

    table = actions.add_parser("table", help="a table of the paper, measured")
    table.add_argument("which", choices=("1", "2", "3", "memory"))
    _plan(table, models=False)
    table.add_argument("--shapes", help="memory: models with random weights, separated by commas (default: OPT's)")
    table.add_argument("--batches", help="memory: such as 16x64,1x400, rows and tokens a row")
    _page(table)
    table.set_defaults(func=_table)

    figure = actions.add_parser("figure", help="a comparison of the paper, measured")
    figure.add_argument("which", choices=("newton", "curves", "optimizers", "ablation", "floor"))
    _plan(figure)
    _page(figure)
    figure.set_defaults(func=_figure)

    tune = actions.add_parser("tune", help="find a step size for a model and data of your own")
    tune.add_argument("--forwards", type=int, required=True, help="budget of all runs together")
    tune.add_argument("--kind", choices=KINDS, required=True)
    tune.add_argument("--task", required=True)
    tune.add_argument("--method", default="mezo")
    tune.add_argument("--tuning", default="full")
    tune.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="another setting of the runs")
    _where(tune, store=True)
    tune.set_defaults(func=_tune)

    estimate = actions.add_parser("estimate", help="hours and bytes of a preset before it starts")
    _plan(estimate)
    estimate.set_defaults(func=_estimate)

    data = actions.add_parser("data", help="the data folder")
    fetch = data.add_subparsers(metavar="ACTION", required=True).add_parser("fetch", help="fill it from the Hub")
    fetch.add_argument("tasks", nargs="*", help="default: all")
    fetch.add_argument("--data", type=Path, required=True)
    fetch.set_defaults(func=_fetch)

    profile = actions.add_parser("profile", help="where a step's time goes, beside the least that each part takes")
    profile.add_argument("--shape", help="of a model with random weights, such as opt-1.3b, in place of a run's")
    profile.add_argument("--batch", default="16x64", help="with --shape: rows and tokens a row")
    profile.add_argument("--method", default="mezo", choices=("mezo", "helene"), help="with --shape")
    profile.add_argument("--config", type=Path)
    profile.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    profile.add_argument("--steps", type=int, default=20)
    profile.add_argument("--json", type=Path, help="file for all numbers")
    _where(profile, store=False, models=False)
    profile.set_defaults(func=_profile)

    demo = actions.add_parser("demo", help="two minutes on a CPU: pretrain tiny models, tune them, write the page")
    demo.add_argument("--out", type=Path, default=Path("reports"))
    demo.add_argument("--jobs", type=int, default=2)
    demo.set_defaults(func=_demo)


def _where(parser: argparse.ArgumentParser, *, store: bool, models: bool = True) -> None:
    parser.add_argument(
        "--model", action="append", required=models, metavar="[NAME=]DIR|ID", help="a folder or a name on the Hub"
    )
    parser.add_argument("--data", type=Path, required=models, help="the data folder")
    parser.add_argument("--store", type=Path, required=store, help="file of records; made when missing")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1 (default: cpu)")
    parser.add_argument("--work", type=Path, help="folder for runs under way (default: beside the store)")


def _plan(parser: argparse.ArgumentParser, *, models: bool = True) -> None:
    parser.add_argument("--preset", default="small", help="smoke, small, brief, parts or paper (default: small)")
    _where(parser, store=True, models=models)
    parser.add_argument("--minutes", type=float, help="begin no run that would not end within this time")
    parser.add_argument("--methods", nargs="+", help="only these (default: the preset's)")
    parser.add_argument("--tasks", nargs="+", help="only these")
    parser.add_argument("--tunings", nargs="+", help="only these")
    parser.add_argument("--dtype", help="of the weights (default: the preset's)")
    parser.add_argument("--engine", action="store_true", help="capture steps (CUDA)")
    parser.add_argument("--scheduler", metavar="ADDRESS", help="of a Dask cluster, whose workers make the runs")


def _page(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=Path("reports"), help="folder of the reports (default: reports)")
    parser.add_argument("--draw-only", action="store_true", help="make no run; show what the store has")


def _named_models(words: list[str]) -> dict[str, str]:
    named = {}
    for word in words:
        name, equals, source = word.partition("=")
        if not equals:
            name, source = Path(word).name if Path(word).is_dir() else word, word
        named[name] = source
    return named


def _environment(arguments: argparse.Namespace, **more: Any) -> Any:
    from llm_bench.models import check_device
    from llm_bench.runs.environment import environment

    if not getattr(arguments, "draw_only", False):  # a page of runs on another machine needs no device of theirs
        check_device(arguments.device)
    work = arguments.work
    if work is None and arguments.store is not None:
        work = arguments.store.with_name(arguments.store.name + ".work")
    models = _named_models(arguments.model)
    return environment(arguments.data, models=models, device=arguments.device, work=work, show=True, **more)


def _device_kind(arguments: argparse.Namespace) -> str:
    return "cuda" if arguments.device.startswith("cuda") else "cpu"


def _run(arguments: argparse.Namespace) -> int:
    from helene.lab import canonical
    from llm_bench.runs.config import load
    from llm_bench.runs.environment import resolved
    from llm_bench.runs.run import run

    env = _environment(arguments)
    defaults = [f"model={next(iter(env.models))}", f"device={_device_kind(arguments)}"]
    config = resolved(load(arguments.config, [*defaults, *arguments.set]), env)
    print(canonical.dumps(run(config.to_dict(), env)))
    return 0


def _bench(arguments: argparse.Namespace, extra_methods: tuple[str, ...] = ()) -> Any:
    import dataclasses

    from llm_bench.models import kind_of
    from llm_bench.tables.execute import Bench
    from llm_bench.tables.presets import get_preset
    from llm_bench.tuning import TUNINGS

    preset = get_preset(arguments.preset)
    changes: dict[str, Any] = {}
    if arguments.methods or extra_methods:
        wanted = tuple(arguments.methods or extra_methods)
        changes["untrained"] = tuple(m for m in preset.untrained if not arguments.methods or m in wanted)
        changes["methods"] = tuple(m for m in wanted if m not in preset.untrained)
    _all_known("--tasks", arguments.tasks, [t for tasks in preset.tasks.values() for t in tasks], preset.name)
    _all_known("--tunings", arguments.tunings, TUNINGS, preset.name)
    if arguments.tasks:
        changes["tasks"] = {k: tuple(t for t in ts if t in arguments.tasks) for k, ts in preset.tasks.items()}
    if arguments.tunings:
        changes["tunings"] = tuple(arguments.tunings)
    if arguments.dtype:
        changes["dtype"] = arguments.dtype
    preset = dataclasses.replace(preset, **changes)
    env = _environment(arguments)
    models: dict[Any, str] = {}
    for name, source in env.models.items():
        models.setdefault(kind_of(source), name)
    more = {"engine": True, "best": "copy"} if arguments.engine else {}
    return Bench(preset, models, env, _device_kind(arguments), more)


def _all_known(option: str, given: list[str] | None, known: Any, preset: str) -> None:
    unknown = [name for name in given or [] if name not in known]
    if unknown:
        names = ", ".join(dict.fromkeys(known))
        raise ValueError(f"{option} has {unknown[0]!r}, which preset {preset} does not; it has {names}")


def _executor(arguments: argparse.Namespace) -> Any:
    if arguments.scheduler is None:
        return None
    from helene.lab.dask_executor import DaskExecutor

    return DaskExecutor(arguments.scheduler, {"GPU": 1} if _device_kind(arguments) == "cuda" else {})


def _execute(arguments: argparse.Namespace, bench: Any, wanted: Any) -> Any:
    """Make the runs, unless only drawing was asked for; returns the records."""
    from helene.lab.store import Store
    from llm_bench.tables.execute import execute, experiment

    only_draw = getattr(arguments, "draw_only", False)
    with Store(arguments.store, read_only=only_draw) as store:
        if not only_draw:
            left = execute(bench, wanted, store, minutes=arguments.minutes, executor=_executor(arguments))
            print(f"{left} runs left" if left else "all runs are there", file=sys.stderr)
        return store.records(experiment(bench.preset.name))


def _sweep(arguments: argparse.Namespace) -> int:
    from llm_bench.tables.plan import cells

    bench = _bench(arguments)
    _execute(arguments, bench, cells(bench.preset))
    return 0


def _command(arguments: argparse.Namespace, what: str) -> str:
    from helene.lab.provenance import public_command

    models = [word for name in arguments.model for word in ("--model", name)]
    words = ["helene", "llm", what, arguments.which, "--preset", arguments.preset, *models]
    words += ["--data", str(arguments.data.absolute()), "--store", str(arguments.store.absolute())]
    for name in ("methods", "tasks", "tunings"):
        words += [f"--{name}", *given] if (given := getattr(arguments, name)) else []
    words += ["--dtype", arguments.dtype] if arguments.dtype else []
    words += ["--device", arguments.device] if arguments.device != "cpu" else []
    return public_command([*words, *(["--engine"] if arguments.engine else [])])


def _table(arguments: argparse.Namespace) -> int:
    from helene.lab.provenance import provenance
    from llm_bench.tables import draw, page
    from llm_bench.tables.paper import TABLES
    from llm_bench.tables.plan import cells_of_table

    if arguments.which == "memory":
        return _memory(arguments)
    if not arguments.model or arguments.data is None:
        raise ValueError(f"table {arguments.which} makes runs: give it --model and --data")
    bench, paper = _bench(arguments), TABLES[arguments.which]
    wanted = cells_of_table(bench.preset, paper)
    records = _execute(arguments, bench, wanted)
    table = page.collect(bench, wanted, records)
    command = _command(arguments, "table")
    sections = [page.table_section(table, paper, bench.models), draw.section(table), page.costs_section(table)]
    sections += [page.sensitivity_section(table), page.cells_section(table, command), page.facts_section(table)]
    title = f"Table {arguments.which}: {paper.title}"
    name = f"table-{arguments.which}"
    said = provenance(command)
    print(
        page.write(arguments.out, name, title=title, table=table, sections=sections, command=command, provenance=said)
    )
    return 0


def _memory(arguments: argparse.Namespace) -> int:
    from helene.lab.provenance import provenance, public_command
    from helene.lab.store import Store
    from llm_bench import memory_rows
    from llm_bench.tables import memory_page
    from llm_bench.tables.execute import experiment

    shapes = arguments.shapes.split(",") if arguments.shapes else list(memory_rows.SHAPES)
    batches = arguments.batches.split(",") if arguments.batches else list(memory_rows.BATCHES)
    with Store(arguments.store, read_only=arguments.draw_only) as store:
        if not arguments.draw_only:
            memory_rows.measure_all(
                store,
                memory_rows.ROWS,
                shapes,
                batches,
                device=arguments.device,
                minutes=arguments.minutes,
                say=lambda text: print(text, file=sys.stderr),
            )
        records, runs = store.records(memory_rows.EXPERIMENT), store.records(experiment(arguments.preset))
    words = ["helene", "llm", "table", "memory", "--device", arguments.device, "--shapes", ",".join(shapes)]
    words += ["--batches", ",".join(batches), "--store", str(arguments.store.absolute())]
    command = public_command(words)
    print(memory_page.write(arguments.out, records, runs, command, provenance(command)))
    return 0


def _figure(arguments: argparse.Namespace) -> int:
    from helene.lab.provenance import provenance
    from llm_bench.tables import draw, page
    from llm_bench.tables.plan import cells

    bench = _bench(arguments, draw.FIGURES[arguments.which])
    wanted = cells(bench.preset)
    records = _execute(arguments, bench, wanted)
    table = page.collect(bench, wanted, records)
    command = _command(arguments, "figure")
    sections = [draw.section(table, arguments.which), page.costs_section(table), page.cells_section(table, command)]
    title, name = draw.TITLES[arguments.which], f"figure-{arguments.which}"
    said = provenance(command)
    print(
        page.write(arguments.out, name, title=title, table=table, sections=sections, command=command, provenance=said)
    )
    return 0


def _tune(arguments: argparse.Namespace) -> int:
    from helene.lab.store import Store
    from llm_bench import methods
    from llm_bench.runs.config import load
    from llm_bench.tables.presets import BASE_LR, EPS
    from llm_bench.tune import tune

    env = _environment(arguments)
    first = methods.is_first_order(arguments.method)
    if arguments.tuning not in BASE_LR:
        raise ValueError(f"--tuning must be one of {', '.join(BASE_LR)}, got {arguments.tuning!r}")
    eps = "none" if first else EPS[arguments.kind, arguments.tuning]
    natural = BASE_LR[arguments.tuning] * methods.get_method(arguments.method).lr_ratio
    settings = {
        "model": next(iter(env.models)),
        "kind": arguments.kind,
        "task": arguments.task,
        "method": arguments.method,
        "tuning": arguments.tuning,
        "eps": eps,
        "lr": natural,
        "steps": 10,
        "eval_every": 10,
        "device": _device_kind(arguments),
    }
    base = load(None, [*(f"{name}={value}" for name, value in settings.items()), *arguments.set])
    with Store(arguments.store) as store:
        found = tune(base, natural, arguments.forwards, env, store)
    for lr, loss, status in found.tried:
        print(f"{lr:10.3g}  dev loss {'–' if loss is None else f'{loss:.4f}'}  {status}")
    edge = ", at the edge of what was tried: try further" if found.edge else ""
    print(f"best: lr={found.lr:g}{edge} ({found.forwards} forwards)")
    return 0


def _estimate(arguments: argparse.Namespace) -> int:
    from helene.lab.progress import readable_seconds
    from helene.lab.store import Store
    from llm_bench.estimate import estimate, predict_run, shape_of
    from llm_bench.tables.execute import experiment
    from llm_bench.tables.plan import cells, test_runs, tuning_runs

    bench = _bench(arguments)
    shapes = {name: shape_of(bench.env.source(name)) for name in bench.models.values()}
    records = []
    if arguments.store.is_file():
        with Store(arguments.store, read_only=True) as store:
            records = store.records(experiment(bench.preset.name))
    total = 0.0
    for kind, name in bench.models.items():
        here = [c for c in cells(bench.preset) if c.kind == kind]
        runs = [r for c in here for r in tuning_runs(bench.preset, c, name, bench.device)]
        runs += [r for c in here for r in test_runs(bench.preset, c, name, bench.device, 1.0)]
        found = estimate(runs, shapes, records, lambda c: predict_run(c, bench.env.source(c.model)).total)
        total += found.seconds
        print(
            f"{kind}, {name}: {found.runs} runs, {readable_seconds(found.seconds)} of training "
            f"({found.source} speed), {found.bytes / 2**30:.1f} GiB at most"
        )
    print(f"in all {readable_seconds(total)} one after the other; evaluation and loading come on top")
    return 0


def _fetch(arguments: argparse.Namespace) -> int:
    from llm_bench.fetch import fetch
    from llm_bench.tasks import get_task, task_names

    every = dict.fromkeys((*task_names("masked"), *task_names("causal")))
    for name in arguments.tasks or every:
        kind = "masked" if name in task_names("masked") else "causal"
        for path in fetch(get_task(name, kind), arguments.data):
            print(path)
    return 0


def _profile(arguments: argparse.Namespace) -> int:
    import json

    from llm_bench import step_profile

    if arguments.shape:
        dtype = "bfloat16" if _device_kind(arguments) == "cuda" else "float32"
        found = step_profile.shape_profile(
            arguments.shape, arguments.batch, arguments.method, dtype, arguments.device, arguments.steps
        )
    else:
        if not arguments.model or arguments.data is None:
            raise ValueError("profile looks at a run's step: give it --model and --data, or --shape")
        from llm_bench.runs.config import load
        from llm_bench.runs.environment import resolved

        env = _environment(arguments)
        defaults = [f"model={next(iter(env.models))}", f"device={_device_kind(arguments)}"]
        config = resolved(load(arguments.config, [*defaults, *arguments.set]), env)
        found = step_profile.run_profile(config, env, arguments.steps)
    print(step_profile.shown(found))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found, indent=1))
    return 0


def _demo(arguments: argparse.Namespace) -> int:
    from llm_bench.demo import demo

    print(demo(arguments.out, jobs=arguments.jobs))
    return 0
