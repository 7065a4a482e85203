"""What the arguments of `helene llm` stand for: models, runs, a preset and where it runs, a page's command."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llm_bench.protocol.plan import Cell
    from llm_bench.protocol.presets import Preset
    from llm_bench.tasks.task import Kind


def named_models(words: list[str]) -> dict[str, str]:
    """Sources by name: of ``NAME=DIR``, or by the folder's own name, or the name on the Hub.

    Raises:
        ValueError: If two have one name, or one has none.
    """
    named: dict[str, str] = {}
    for word in words:
        name, equals, source = word.partition("=")
        if not equals or Path(word).is_dir():
            folder = Path(word)
            name, source = folder.name or folder.resolve().name if folder.is_dir() else word, word
        if not name or not source:
            raise ValueError(f"--model must be a folder, a name on the Hub or NAME= and one of these, got {word!r}")
        if name in named:
            raise ValueError(
                f"--model has the name {name!r} twice, of {named[name]} and {source}; give NAME=DIR for one"
            )
        named[name] = source
    return named


def environment(arguments: argparse.Namespace, check: bool = True) -> Any:
    """Where runs find models, data and a device.

    Raises:
        ValueError: If there is no such kind of device, or, where ``check`` asks for it, it is not there or nothing can
            be written to the folder for runs under way.
    """
    from llm_bench.models.loading import check_device
    from llm_bench.runs.environment import environment as made
    from llm_bench.runs.training.checkpoint import Folder

    # A page of runs on another machine, or a forecast for one, needs no device of theirs.
    is_used = check and not getattr(arguments, "draw_only", False)
    check_device(arguments.device, is_used=is_used)
    work = arguments.work
    if is_used and work is not None:
        Folder(str(work), "run").check()  # now, and not in every run
    if work is None and arguments.store is not None:
        work = arguments.store.with_name(arguments.store.name + ".work")
    models = named_models(arguments.model)
    return made(arguments.data, models=models, device=arguments.device, work=work, show=True)


def device_kind(arguments: argparse.Namespace) -> str:
    """``cuda`` or ``cpu``, whichever of the devices."""
    return "cuda" if arguments.device.startswith("cuda") else "cpu"


def run(arguments: argparse.Namespace) -> tuple[Any, Any]:
    """The configuration of one run, and its environment."""
    from llm_bench.runs.environment import resolved

    env = environment(arguments)
    return resolved(config(arguments, env, arguments.config, {"device": device_kind(arguments)}), env), env


def config(arguments: argparse.Namespace, env: Any, path: Path | None, defaults: dict[str, Any]) -> Any:
    """A run's settings: the model of the arguments and these, a file's over them, and over both those of ``--set``.

    Raises:
        ValueError: If the run's model is none of the arguments' or of another kind, or they have several and it is not
            said which, or its steps are to be captured on a CPU.
    """
    from llm_bench.models.loading import check_kind
    from llm_bench.runs.config import load

    only = next(iter(env.models)) if len(env.models) == 1 else ""
    made = load(path, arguments.set, {"model": only, **defaults})
    if made.model not in env.models:
        said = (
            f"the run is of model {made.model!r}, which --model does not give" if made.model else "a run has one model"
        )
        names = ", ".join(env.models)
        raise ValueError(f"{said}; --model gives {names}: name it by NAME=DIR, or choose by --set model=NAME")
    _check_engine(arguments, made.engine, "set engine=false")
    check_kind(env.source(made.model), made.kind)
    return made


def _check_engine(arguments: argparse.Namespace, engine: object, way_out: str) -> None:
    """Raise ValueError where steps are to be captured on a device that cannot: every run would fail."""
    if engine and device_kind(arguments) != "cuda":
        raise ValueError(
            f"the engine captures steps on a CUDA device, and --device is {arguments.device}; give --device cuda, or "
            f"{way_out}"
        )


def bench(arguments: argparse.Namespace, extra_methods: tuple[str, ...] = (), check: bool = True) -> Any:
    """The preset, changed as the arguments say, and where it runs; without models to draw, where its records ran.

    Raises:
        ValueError: If a method is unknown, the preset lacks a task or a tuning that was asked for, or steps are to be
            captured on a CPU.
    """
    import dataclasses

    from llm_bench.models.loading import kind_of
    from llm_bench.models.tuning import TUNINGS
    from llm_bench.protocol.execute import Bench
    from llm_bench.protocol.presets import get_preset
    from llm_bench.runs.methods import get_method

    preset = get_preset(arguments.preset)
    changes: dict[str, Any] = {}
    if arguments.methods or extra_methods:
        wanted = tuple(dict.fromkeys(arguments.methods or extra_methods))
        for name in wanted:
            if name not in preset.untrained:
                get_method(name)
        changes["untrained"] = tuple(m for m in preset.untrained if not arguments.methods or m in wanted)
        changes["methods"] = tuple(m for m in wanted if m not in preset.untrained)
    _all_known("--tunings", arguments.tunings, TUNINGS, preset.name)
    if arguments.tasks:
        changes["tasks"] = _tasks(preset, arguments.tasks)
    if arguments.tunings:
        changes["tunings"] = tuple(dict.fromkeys(arguments.tunings))
    if arguments.dtype:
        changes["dtype"] = arguments.dtype
    if arguments.products:
        changes["products"] = arguments.products
    preset = dataclasses.replace(preset, **changes)
    if not arguments.model or arguments.data is None:
        if not arguments.draw_only:
            raise ValueError("tables and figures make runs: give --model and --data, or --draw-only")
        from llm_bench.protocol.recorded import recorded

        return recorded(preset, records(arguments))
    env = environment(arguments, check)
    models: dict[Any, str] = {}
    for name, source in env.models.items():
        kind = kind_of(source)
        if kind in models:
            raise ValueError(f"--model has two {kind} models, {models[kind]} and {name}; give one of each kind")
        models[kind] = name
    _check_engine(arguments, arguments.engine, "leave --engine out")
    more = {"engine": True, "best": "copy"} if arguments.engine else {}
    return Bench(preset, models, env, device_kind(arguments), more)


def records(arguments: argparse.Namespace) -> Any:
    """What the store has of the preset."""
    from helene.lab.runs.store import Store
    from llm_bench.protocol.execute import experiment

    with Store(arguments.store, read_only=True) as store:
        return store.records(experiment(arguments.preset))


def _tasks(preset: Preset, words: list[str]) -> dict[Kind, tuple[str, ...]]:
    """By kind the tasks of those names; one that the preset lacks is taken for every kind that has it."""
    from llm_bench.tasks import task_names

    usual = [task for tasks in preset.tasks.values() for task in tasks]
    every = [task for kind in preset.tasks for task in task_names(kind)]
    if unknown := [word for word in words if word not in every]:
        there = ", ".join(dict.fromkeys(every))
        raise ValueError(f"--tasks has {unknown[0]!r}, and there is no such task; there are {there}")
    more = [word for word in dict.fromkeys(words) if word not in usual]
    return {
        kind: (*(t for t in tasks if t in words), *(t for t in more if t in task_names(kind)))
        for kind, tasks in preset.tasks.items()
    }


def _all_known(option: str, given: list[str] | None, known: Any, preset: str) -> None:
    unknown = [name for name in given or [] if name not in known]
    if unknown:
        names = ", ".join(dict.fromkeys(known))
        raise ValueError(f"{option} has {unknown[0]!r}, which preset {preset} does not; it has {names}")


def check_asked(arguments: argparse.Namespace, cells: Sequence[Cell], page: str) -> None:
    """Raise ValueError where a page would lack a method, a task or a tuning that was asked for, or be blank."""
    if not cells:
        raise ValueError(
            f"{page} has nothing that preset {arguments.preset} runs with these models; give a model of its kind "
            "(--model), or another preset"
        )
    for option, name in (("methods", "method"), ("tasks", "task"), ("tunings", "tuning")):
        there = dict.fromkeys(getattr(cell, name) for cell in cells)
        missing = [word for word in getattr(arguments, option) or [] if word not in there]
        if missing:
            raise ValueError(
                f"{page} has no {name} {missing[0]!r} of preset {arguments.preset} with these models; it has "
                f"{', '.join(there)}; `helene llm sweep` makes other runs"
            )


def refuse(arguments: argparse.Namespace, options: Sequence[str], table: str) -> None:
    """Raise ValueError where an option is given that a table does not look at."""
    for name in options:
        if getattr(arguments, name):
            raise ValueError(f"table {table} does not look at --{name}; leave it out")


def executor(arguments: argparse.Namespace) -> Any:
    """The Dask cluster that makes the runs, None for this process."""
    if arguments.scheduler is None:
        return None
    from helene.lab.sweeps.dask_executor import DaskExecutor

    return DaskExecutor(arguments.scheduler, {"GPU": 1} if device_kind(arguments) == "cuda" else {})


def command(arguments: argparse.Namespace, what: str) -> str:
    """The command that makes a page, without what is this machine's own."""
    from helene.lab.runs.provenance import public_command

    models = [word for name in arguments.model or [] for word in ("--model", name)]
    words = ["helene", "llm", what, arguments.which, "--preset", arguments.preset, *models]
    words += ["--data", str(arguments.data)] if arguments.data is not None else []
    words += ["--store", str(arguments.store)]
    for name in ("methods", "tasks", "tunings"):
        words += [f"--{name}", *given] if (given := getattr(arguments, name)) else []
    words += ["--dtype", arguments.dtype] if arguments.dtype else []
    words += ["--products", arguments.products] if arguments.products else []
    words += ["--device", arguments.device] if arguments.device != "cpu" else []
    words += ["--engine"] if arguments.engine else []
    words += ["--out", str(arguments.out)] if arguments.out != Path("reports") else []
    return public_command([*words, *(["--draw-only"] if not arguments.model else [])])
