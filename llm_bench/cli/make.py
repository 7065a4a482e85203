"""Actions of `helene llm` that make runs, or say what they would take; imports wait until one is chosen."""

from __future__ import annotations

import argparse
import sys
from typing import Any

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
    return all_failed(executed(arguments, bench, wanted))


def executed(arguments: argparse.Namespace, bench: Any, wanted: Any) -> Any:
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


def all_failed(records: Any) -> int:
    """1, and why on stderr, where there are records and every one is of a run that failed."""
    if not records or not all(record.failed for record in records):
        return 0
    print(f"helene: all {len(records)} runs failed: {records[-1].result.get('message')}", file=sys.stderr)
    return 1


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
