"""``helene llm``: its actions and their options."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from llm_bench.cli import actions as do

KINDS = ("causal", "masked")
_EPILOG = """\
examples:
  helene llm demo                                                       two minutes on a CPU, no download
  helene llm table 2 --preset small --model gemma=DIR --data DIR --store runs.sqlite
  helene llm sweep --preset small --model gemma=DIR --data DIR --store runs.sqlite --minutes 9
  helene llm tune --forwards 8000 --kind causal --task sst2 --model DIR --data DIR --store runs.sqlite
  helene llm run --config run.toml --set lr=1e-6 --model gemma=DIR --data DIR
  helene llm measure engine --out DIR                                   the engine beside its rivals, on one GPU
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

    run = actions.add_parser("run", help="one run, kept where a store is given; its result as JSON")
    run.add_argument("--config", type=Path, help="a TOML file of settings")
    run.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting, over the file's")
    _where(run, store=False)
    run.set_defaults(func=do.run)

    sweep = actions.add_parser("sweep", help="make the runs of a preset that the store lacks")
    _plan(sweep)
    sweep.set_defaults(func=do.sweep)

    table = actions.add_parser("table", help="a table of the paper, measured")
    table.add_argument("which", choices=("1", "2", "3", "memory"))
    _plan(table, models=False)
    table.add_argument("--shapes", help="memory: models with random weights, separated by commas (default: OPT's)")
    table.add_argument("--batches", help="memory: such as 16x64,1x400, rows and tokens a row")
    _page(table)
    table.set_defaults(func=do.table)

    figure = actions.add_parser("figure", help="a comparison of the paper, measured")
    figure.add_argument("which", choices=("newton", "curves", "optimizers", "ablation", "curvature", "floor"))
    _plan(figure, models=False)
    _page(figure)
    figure.set_defaults(func=do.figure)

    tune = actions.add_parser("tune", help="find a step size for a model and data of your own")
    tune.add_argument("--forwards", type=int, required=True, help="budget of all runs together")
    tune.add_argument("--kind", choices=KINDS, required=True)
    tune.add_argument("--task", required=True)
    tune.add_argument("--method", default="mezo")
    tune.add_argument("--tuning", default="full")
    tune.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="another setting of the runs")
    _where(tune, store=True)
    tune.set_defaults(func=do.tune)

    estimate = actions.add_parser("estimate", help="hours and bytes of a preset before it starts")
    _plan(estimate)
    estimate.set_defaults(func=do.estimate)

    data = actions.add_parser("data", help="the data folder")
    fetch = data.add_subparsers(metavar="ACTION", required=True).add_parser("fetch", help="fill it from the Hub")
    fetch.add_argument("tasks", nargs="*", help="default: all")
    fetch.add_argument("--data", type=Path, required=True)
    fetch.set_defaults(func=do.fetch)

    profile = actions.add_parser("profile", help="where a step's time goes, beside the least that each part takes")
    profile.add_argument("--shape", help="of a model with random weights, such as opt-1.3b, in place of a run's")
    profile.add_argument("--batch", default="16x64", help="with --shape: rows and tokens a row")
    profile.add_argument("--method", nargs="+", default=["mezo"], choices=("mezo", "helene"), help="with --shape")
    profile.add_argument("--config", type=Path, help="a run's TOML file of settings")
    profile.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting, over the file's")
    profile.add_argument("--steps", type=int, default=20, help="steps to look at, after some to warm up (default: 20)")
    profile.add_argument("--json", type=Path, help="a file to write all numbers to")
    _where(profile, store=False, models=False)
    profile.set_defaults(func=do.profile)

    measure = actions.add_parser("measure", help="records of what steps and evaluation cost on this machine")
    _measure(measure.add_subparsers(dest="what", metavar="WHAT", required=True))
    measure.set_defaults(func=do.measure)

    pages = actions.add_parser("pages", help="the committed rows as pages; needs no GPU, models or data")
    pages.add_argument("--out", type=Path, default=Path("reports"), help="folder of the reports (default: reports)")
    pages.set_defaults(func=do.pages)

    sensitivity = actions.add_parser("sensitivity", help="how forgiving each method's step size is, from records")
    sensitivity.add_argument("records", type=Path, nargs="+", help="exported records")
    sensitivity.add_argument("--write", type=Path, metavar="PAGE", help="put the table between the page's marks")
    sensitivity.set_defaults(func=do.sensitivity)

    demo = actions.add_parser("demo", help="two minutes on a CPU: pretrain tiny models, tune them, write the page")
    demo.add_argument("--out", type=Path, default=Path("reports"))
    demo.add_argument("--jobs", type=int, default=2)
    demo.set_defaults(func=do.demo)


def _measure(kinds: Any) -> None:
    engine = kinds.add_parser("engine", help="the engine's step beside its floor and its rivals, on one GPU")
    engine.add_argument("--parts", default="micro,overlap,table,memory,zero,profile")
    engine.add_argument("--rounds", type=int, default=11)
    parallel = kinds.add_parser("parallel", help="several GPUs of one host, each a process of torch.distributed.run")
    parallel.add_argument("--rounds", type=int, default=9)
    parallel.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    for parser in (engine, parallel):
        parser.add_argument("--batches", default="16x64,16x256", help="rows and tokens a row")
    harness = kinds.add_parser("harness", help="evaluation over pure forwards, a step outside forward and update")
    harness.add_argument("--model", required=True, metavar="[NAME=]DIR", help="a causal model, for evaluation")
    harness.add_argument("--data", type=Path, required=True, help="the data folder")
    harness.add_argument("--device", default="cuda")
    harness.add_argument("--steps", type=int, default=20)
    products = kinds.add_parser("products", help="what TF32 and bfloat16 products change in c and in loss curves")
    products.add_argument("--model", action="append", required=True, metavar="KIND=DIR", help="once a kind")
    products.add_argument("--data", type=Path, required=True, help="the data folder")
    products.add_argument("--device", default="cuda")
    products.add_argument("--tasks", nargs="+", default=["causal/sst2:500:2", "causal/squad:200:1"])
    products.add_argument("--products", nargs="+", default=["float32", "tf32"], help="float32 first")
    products.add_argument("--directions", type=int, default=120)
    products.add_argument("--names", nargs="+", default=[], metavar="KIND=NAME", help="of the models in the records")
    products.add_argument("--random-models", action="store_true", help="models need not know English (tests)")
    products.add_argument("--out", type=Path, required=True, help="folder of the records")
    for parser in (engine, parallel, harness):
        parser.add_argument("--out", type=Path, required=True, help="folder of the records")
        parser.add_argument("--shape", default="opt-1.3b", help="of the model with random weights")


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
    parser.add_argument("--minutes", type=_minutes, help="begin no run that would not end within this time")
    parser.add_argument("--methods", nargs="+", help="only these (default: the preset's)")
    parser.add_argument("--tasks", nargs="+", help="only these")
    parser.add_argument("--tunings", nargs="+", help="only these")
    parser.add_argument("--dtype", help="of the weights (default: the preset's)")
    parser.add_argument("--products", help="of float32 weights: float32, tf32 or bfloat16 (default: the preset's)")
    parser.add_argument("--engine", action="store_true", help="capture steps (CUDA)")
    parser.add_argument("--scheduler", metavar="ADDRESS", help="of a Dask cluster, whose workers make the runs")


def _minutes(word: str) -> float:
    value = float(word)
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"must be 0 or above, got {word}")
    return value


def _page(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=Path("reports"), help="folder of the reports (default: reports)")
    parser.add_argument("--draw-only", action="store_true", help="make no run; show what the store has")
