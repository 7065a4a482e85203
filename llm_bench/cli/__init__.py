"""``helene llm``: its actions and their options."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from helene.lab.commands import Help, add_command
from llm_bench.cli import draw, make

KINDS = ("causal", "masked")
_HERE = "--model gemma=DIR --data DIR --store runs.sqlite"
_EPILOG = f"""\
examples:
  helene llm demo                                         minutes of a CPU, no download
  helene llm estimate --preset small {_HERE}
  helene llm table 2 --preset small {_HERE}
  helene llm tune --forwards 8000 --kind causal --task sst2 {_HERE}
  helene llm ACTION --help                                all about one action, with an example

The layout of the data folder is in docs/adding_a_task.md, the presets in llm_bench/README.md.
"""


def add_commands(subparsers: Any) -> None:
    """Add the sub-command to ``helene``'s."""
    llm = subparsers.add_parser(
        "llm",
        help="fine-tune language models: tables, figures, estimates",
        description="Compare HELENE, MeZO and their peers on the paper's tasks, with your own weights and data.",
        epilog=_EPILOG,
        formatter_class=Help,
    )
    actions = llm.add_subparsers(title="actions", metavar="ACTION", required=True)

    run = add_command(
        actions,
        "run",
        "one run, kept where a store is given; its result as JSON",
        example="helene llm run --config run.toml --set lr=1e-6 --model gemma=DIR --data DIR --device cuda",
    )
    run.add_argument("--config", type=Path, help="a TOML file of settings")
    run.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting, over the file's")
    _where(run, store=False)
    run.set_defaults(func=make.run)

    sweep = add_command(
        actions,
        "sweep",
        "make the runs of a preset that the store lacks",
        more="A sweep that is stopped goes on where it was.",
        example=f"helene llm sweep --preset small {_HERE} --device cuda --engine --minutes 9",
    )
    _plan(sweep)
    sweep.set_defaults(func=make.sweep)

    table = add_command(
        actions,
        "table",
        "a table of the paper, measured",
        more="Makes the runs that the store lacks, then writes the page. 1 is of masked models, 2 of causal ones, 3 of "
        "further methods, memory of peak bytes.",
        example=f"helene llm table 2 --preset small {_HERE}\n"
        "helene llm table memory --store memory.sqlite --device cuda",
    )
    table.add_argument("which", choices=("1", "2", "3", "memory"), help="which table")
    _plan(table, models=False)
    table.add_argument("--shapes", help="memory: models with random weights, separated by commas (default: OPT's)")
    table.add_argument("--batches", help="memory: such as 16x64,1x400, rows and tokens a row")
    _page(table)
    table.set_defaults(func=draw.table)

    figure = add_command(
        actions,
        "figure",
        "a comparison of the paper, measured",
        more="Makes the runs that the store lacks, then writes the page. Once a method that it is about was tested, "
        "tasks without such a test are left out and named, unless --tasks asks for them.",
        example=f"helene llm figure ablation --preset parts {_HERE} --device cuda --engine",
    )
    kinds = ("newton", "curves", "optimizers", "ablation", "curvature", "floor", "groups")
    figure.add_argument("which", choices=kinds, help="which comparison")
    _plan(figure, models=False)
    _page(figure)
    figure.set_defaults(func=draw.figure)

    tune = add_command(
        actions,
        "tune",
        "find a step size for a model and data of your own",
        more="Prints each step size tried with its dev loss, and the best.",
        example=f"helene llm tune --forwards 8000 --kind causal --task sst2 --method mezo {_HERE}",
    )
    tune.add_argument("--forwards", type=_count, required=True, help="budget of all runs together")
    tune.add_argument("--kind", choices=KINDS, required=True, help="of the model")
    tune.add_argument("--task", required=True, help="such as sst2; a file in llm_bench/tasks/KIND")
    tune.add_argument("--method", default="mezo", help="such as mezo, helene, zo-adam")
    tune.add_argument("--tuning", default="full", help="full, lora or prefix")
    tune.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="another setting of the runs")
    _where(tune, store=True)
    tune.set_defaults(func=make.tune)

    estimate = add_command(
        actions,
        "estimate",
        "hours and bytes of a preset before it starts",
        more="Runs nothing. The store's records, where there are any, tell the speed. Give the device that the runs "
        "will have: --device cuda needs no GPU here.",
        example=f"helene llm estimate --preset small {_HERE}",
    )
    _plan(estimate)
    estimate.set_defaults(func=make.estimate)

    data = actions.add_parser("data", help="the data folder", description="The data folder.", formatter_class=Help)
    fetch = add_command(
        data.add_subparsers(metavar="ACTION", required=True),
        "fetch",
        "fill it from the Hub",
        more="Needs the package datasets; scripts are never run.",
        example="helene llm data fetch sst2 copa --data data",
    )
    fetch.add_argument("tasks", nargs="*", help="default: all")
    fetch.add_argument("--data", type=Path, required=True, help="the data folder; made when missing")
    fetch.set_defaults(func=make.fetch)

    profile = add_command(
        actions,
        "profile",
        "where a step's time goes, beside the least that each part takes",
        example="helene llm profile --shape opt-1.3b --method mezo helene --device cuda --json profile.json",
    )
    profile.add_argument("--shape", help="of a model with random weights, such as opt-1.3b, in place of a run's")
    profile.add_argument("--batch", default="16x64", help="with --shape: rows and tokens a row")
    profile.add_argument("--method", nargs="+", default=["mezo"], choices=("mezo", "helene"), help="with --shape")
    profile.add_argument("--config", type=Path, help="a run's TOML file of settings")
    profile.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting, over the file's")
    profile.add_argument("--steps", type=_count, default=20, help="steps to look at, after some to warm up")
    profile.add_argument("--json", type=Path, help="a file to write all numbers to")
    _where(profile, store=False, models=False)
    profile.set_defaults(func=draw.profile)

    measure = actions.add_parser(
        "measure",
        help="records of what steps and evaluation cost on this machine",
        description="Records of what steps and evaluation cost on this machine.",
        formatter_class=Help,
    )
    _measure(measure.add_subparsers(dest="what", metavar="WHAT", required=True))
    measure.set_defaults(func=draw.measure)

    pages = add_command(
        actions,
        "pages",
        "the committed rows as pages; needs no GPU, models or data",
        example="helene llm pages --out reports",
    )
    pages.add_argument("--out", type=Path, default=Path("reports"), help="folder of the reports")
    pages.set_defaults(func=draw.pages)

    sensitivity = add_command(
        actions,
        "sensitivity",
        "how forgiving each method's step size is, from records",
        example="helene llm sensitivity llm_bench/records/rows/small/causal-sst2.jsonl",
    )
    sensitivity.add_argument("records", type=Path, nargs="+", help="exported records")
    marks = "put the table between the page's marks; made when missing"
    sensitivity.add_argument("--write", type=Path, metavar="PAGE", help=marks)
    sensitivity.set_defaults(func=draw.sensitivity)

    demo = add_command(
        actions,
        "demo",
        "minutes of a CPU: pretrain tiny models, tune them, write the page",
        more="Nothing is downloaded. It is a toy: it shows that the harness works, not which method is better.",
        example="helene llm demo --out reports",
    )
    demo.add_argument("--out", type=Path, default=Path("reports"), help="folder of the reports")
    demo.add_argument("--jobs", type=_count, default=2, help="worker processes")
    demo.set_defaults(func=draw.demo)


def _measure(kinds: Any) -> None:
    engine = add_command(
        kinds,
        "engine",
        "the engine's step beside its floor and its rivals, on one GPU",
        example="helene llm measure engine --shape opt-1.3b --out engine",
    )
    engine.add_argument(
        "--parts",
        default="micro,overlap,table,memory,zero,profile",
        help="separated by commas; also compiled, host (of optimizer.step), and alone, for shapes of which table has "
        "too many copies",
    )
    engine.add_argument("--rounds", type=_count, default=11, help="that each time is the median of")
    parallel = add_command(
        kinds,
        "parallel",
        "several GPUs of one host, each a process of torch.distributed.run",
        more="Under torch.distributed.run it is python -m llm_bench.cli measure parallel, see docs/engine.md.",
        example="helene llm measure parallel --out parallel",
    )
    parallel.add_argument("--rounds", type=_count, default=9, help="that each time is the median of")
    parallel.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="of all processes")
    for parser in (engine, parallel):
        parser.add_argument("--batches", default="16x64,16x256", help="rows and tokens a row")
    harness = add_command(
        kinds,
        "harness",
        "evaluation over pure forwards, a step outside forward and update",
        example="helene llm measure harness --model gemma=DIR --data DIR --out harness",
    )
    harness.add_argument("--model", required=True, metavar="[NAME=]DIR", help="a causal model, for evaluation")
    harness.add_argument("--data", type=Path, required=True, help="the data folder")
    harness.add_argument("--device", default="cuda", help="cpu, cuda, cuda:1")
    harness.add_argument("--steps", type=_count, default=20, help="steps to time")
    products = add_command(
        kinds,
        "products",
        "what TF32 and bfloat16 products change in c and in loss curves",
        example="helene llm measure products --model causal=DIR --data DIR --out products",
    )
    products.add_argument("--model", action="append", required=True, metavar="KIND=DIR", help="once a kind")
    products.add_argument("--data", type=Path, required=True, help="the data folder")
    products.add_argument("--device", default="cuda", help="cpu, cuda, cuda:1")
    products.add_argument(
        "--tasks", nargs="+", default=["causal/sst2:500:2", "causal/squad:200:1"], help="KIND/TASK:STEPS:SEEDS"
    )
    products.add_argument("--products", nargs="+", default=["float32", "tf32"], help="float32 first")
    products.add_argument("--directions", type=_count, default=120, help="that c is measured on")
    products.add_argument("--names", nargs="+", default=[], metavar="KIND=NAME", help="of the models in the records")
    products.add_argument("--random-models", action="store_true", help="models need not know English (tests)")
    products.add_argument("--out", type=Path, required=True, help="folder of the records")
    instructions = add_command(
        kinds,
        "instructions",
        "machine instructions an element of the kernels; needs no GPU",
        example="helene llm measure instructions --out instructions",
    )
    instructions.add_argument("--out", type=Path, required=True, help="folder of the records")
    for parser in (engine, parallel, harness):
        parser.add_argument("--out", type=Path, required=True, help="folder of the records")
        parser.add_argument("--shape", default="opt-1.3b", help="of the model with random weights")


def _where(parser: argparse.ArgumentParser, *, store: bool, models: bool = True) -> None:
    parser.add_argument(
        "--model", action="append", required=models, metavar="[NAME=]DIR|ID", help="a folder or a name on the Hub"
    )
    parser.add_argument("--data", type=Path, required=models, help="the data folder")
    parser.add_argument("--store", type=Path, required=store, help="file of records; made when missing")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1")
    parser.add_argument("--work", type=Path, help="folder for runs under way (default: beside the store)")


def _plan(parser: argparse.ArgumentParser, *, models: bool = True) -> None:
    presets = (
        "smoke, small, brief, parts, all, groups, groups-4, groups-64, groups-2x8, groups-2x16, groups-fzoo, table-3, "
        "second-model or paper"
    )
    parser.add_argument("--preset", default="small", help=presets)
    _where(parser, store=True, models=models)
    parser.add_argument("--minutes", type=_minutes, help="begin no run that would not end within this time")
    parser.add_argument("--methods", nargs="+", help="only these (default: the preset's)")
    parser.add_argument("--tasks", nargs="+", help="only these")
    parser.add_argument("--tunings", nargs="+", help="only these")
    parser.add_argument("--dtype", help="of the weights (default: the preset's)")
    parser.add_argument("--products", help="of float32 weights: float32, tf32 or bfloat16 (default: the preset's)")
    parser.add_argument("--engine", action="store_true", help="capture steps (CUDA)")
    parser.add_argument("--scheduler", metavar="ADDRESS", help="of a Dask cluster, whose workers make the runs")


def _count(word: str) -> int:
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number, 1 or above, got {word!r}")
    return int(word)


def _minutes(word: str) -> float:
    value = float(word)
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"must be 0 or above, got {word}")
    return value


def _page(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=Path("reports"), help="folder of the reports")
    parser.add_argument("--draw-only", action="store_true", help="make no run; show what the store has")
