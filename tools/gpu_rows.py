"""Real rows on the GPUs of one machine, in pieces of minutes: ``python -m tools.gpu_rows``.

Made for a machine that is given for minutes at a time, without a network, and takes files piece by piece. Each call
takes what was carried into its keeping folder (`tools.packed_models` says what that may be); once all is there it makes
the models and goes on with the rows where the last call stopped. What was measured is exported after each run. With
``--cards N`` there is a process a GPU, which takes the next cell as it comes free; ``--per-card K`` makes it K, by
CUDA's multi-process service where there is one, for captured steps of small models, which leave a GPU idle. Steps that
are not captured take many times as long beside others. Seconds of such runs tell nothing of one run alone.

Rows of several GPUs together, of presets such as groups-2x16, are made under
``python -m torch.distributed.run --nproc-per-node 2 -m tools.gpu_rows``: the first process decides and keeps records.
Their models are to be ready, for the others wait no longer than two minutes.
"""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import sys
import time
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, get_args

from helene.lab.runs.store import Record, Store, StoreError
from helene.lab.sweeps.executors import Executor
from llm_bench.protocol.execute import Bench, execute
from llm_bench.protocol.plan import Cell, cells
from llm_bench.protocol.presets import get_preset
from llm_bench.runs import methods, ranks
from llm_bench.runs.config import UNTRAINED
from llm_bench.runs.environment import environment
from llm_bench.runs.training.stepper import engine_available
from llm_bench.tasks.task import Kind
from tools.packed_models import ModelParts
from tools.side_by_side import Claims, shared_cards, side_by_side

# Of most value first: what a call has no time for is the least.
ROWS = (
    "small/causal/sst2/mezo,helene,zero-shot,bias-only,linear-probe,icl",
    "small/masked/sst2/zero-shot,bias-only,linear-probe,mezo,helene",
    "small/causal/copa/zero-shot,icl,mezo,helene",
    "parts/causal/sst2",
    *(f"brief/causal/{task}" for task in ("squad", "rte", "boolq")),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one call; returns 0 also when runs are left or it was interrupted, 1 where a cell cannot be run.

    It returns 2 where what was carried, or a file to resume from, is damaged.
    """
    arguments = _arguments(argv)
    try:
        with ranks.executor(arguments.device) as executor:
            return 0 if executor is None else _call(arguments, executor)
    except (ValueError, FileNotFoundError, StoreError) as err:
        print(f"gpu_rows: {err}", file=sys.stderr)
        return 2


def _call(arguments: argparse.Namespace, executor: Executor) -> int:
    end = time.monotonic() + 60 * arguments.minutes
    recipe = _recipe(arguments)
    recipe.keep.mkdir(parents=True, exist_ok=True)
    if arguments.carried is not None:
        recipe.take(arguments.carried)
    wanted = [(name, cell) for word in arguments.rows for name, found in [cells_of(word)] for cell in found]
    models = Models(arguments, recipe)
    kinds = list(dict.fromkeys(cell.kind for _, cell in wanted))
    if not any(models.folder(kind) for kind in kinds):  # the others when their rows come
        there = sorted(path.name for path in recipe.keep.iterdir() if not path.name.startswith("runs.sqlite"))
        print(f"carried so far: {', '.join(there)}; more must come before runs begin")
        return 0
    with Store(recipe.keep / "runs.sqlite") as store:
        for path in arguments.resume:
            resume(path, store)
        known = {record.key for record in store.records() if not record.failed} if arguments.resume else set()
        try:
            if arguments.cards * arguments.per_card > 1:
                for kind in kinds:
                    models.folder(kind)
                return _on_cards(arguments, models, store, end)
            return _rows(arguments, models, wanted, store, end, known, executor)
        except KeyboardInterrupt:
            print("interrupted: the run under way is lost, those before it are exported", flush=True)
            return 0
        finally:
            export(store, arguments.out, known)


class Models:
    """The models of a call: those given, and those that can be made of what was carried.

    Args:
        arguments: Of the call.
        recipe: What models are made of.
    """

    def __init__(self, arguments: argparse.Namespace, recipe: ModelParts) -> None:
        self.recipe = recipe
        self.names: dict[Kind, str] = {"causal": arguments.causal_name, "masked": arguments.masked_name}
        self.folders: dict[str, Path] = {}
        for word in arguments.model:
            kind, _, folder = word.partition("=")
            self.folders[kind] = Path(folder)

    def folder(self, kind: Kind) -> Path | None:
        """Where the model of a kind is; made now, where that is possible and needed."""
        if kind not in self.folders and (made := self.recipe.make(kind)) is not None:
            self.folders[kind] = made
        return self.folders.get(kind)


def _rows(
    arguments: argparse.Namespace,
    models: Models,
    wanted: Sequence[tuple[str, Cell]],
    store: Store,
    end: float,
    known: Collection[str],
    executor: Executor,
) -> int:
    device = "cuda" if arguments.device.startswith("cuda") else "cpu"
    more: dict[str, Any] = {"best": "copy"}  # a replay would take longer than the copy it saves
    if device == "cuda" and engine_available():
        more["engine"] = True
    missing, impossible, claims = 0, 0, Claims(arguments.claims)
    for name, cell in wanted:
        if not claims.take(named(name, cell)):
            continue
        folder = models.folder(cell.kind)
        if folder is None:
            missing += 1
            continue
        # No work folder: a run takes half a minute, less than saving it would.
        called = models.names[cell.kind]
        more_of = {"device": arguments.device, "pretrained": not arguments.random_models}
        env = environment(arguments.data, models={called: str(folder)}, **more_of)
        try:
            missing += execute(
                Bench(get_preset(name), {cell.kind: called}, env, device, more),
                [cell],
                store,
                minutes=max(0.0, (end - time.monotonic()) / 60),
                executor=executor,
                progress=False,
                say=_say,
                after=lambda records: _after(store, arguments.out, known, records),
            )
        except (ValueError, FileNotFoundError) as err:  # a class with too few rows, no data: others can still be run
            impossible += 1
            _say(f"{named(name, cell)} cannot be run: {err}")
    _say(f"{missing} runs left" if missing else f"all {'other ' if impossible else ''}runs are there")
    return int(impossible > 0)


def _on_cards(arguments: argparse.Namespace, models: Models, store: Store, end: float) -> int:
    """Calls on each card; what they have measured is put together at the end. Returns 1 where one failed."""
    keep, out = arguments.keep, arguments.out
    export(store, keep / "known")
    shutil.rmtree(keep / "claims", ignore_errors=True)
    words = ["--data", str(arguments.data), "--minutes", str((end - time.monotonic()) / 60)]
    words += [
        "--resume",
        str(keep / "known"),
        "--device",
        arguments.device,
        "--claims",
        str(keep / "claims"),
        "--rows",
        *arguments.rows,
    ]
    words += ["--causal-name", arguments.causal_name, "--masked-name", arguments.masked_name]
    words += [word for kind, folder in models.folders.items() for word in ("--model", f"{kind}={folder}")]
    words += ["--random-models"] if arguments.random_models else []
    words += ["--sharing", str(arguments.per_card)]
    calls = [f"call-{call}" for call in range(arguments.cards * arguments.per_card)]
    command = [sys.executable, "-m", "tools.gpu_rows", *words]
    commands = [[*command, "--keep", str(keep / call), "--out", str(out / call)] for call in calls]
    with ExitStack() as stack:
        more = stack.enter_context(shared_cards(keep / "mps")) if arguments.per_card > 1 else {}
        failed = side_by_side(commands, arguments.cards, more)
    for call in calls:
        if (keep / call / "runs.sqlite").is_file():
            store.merge(keep / call / "runs.sqlite")
        shutil.rmtree(out / call, ignore_errors=True)
    return 1 if failed else 0


def cells_of(word: str) -> tuple[str, list[Cell]]:
    """Preset and cells of ``PRESET/KIND/TASK[/METHOD,METHOD]``; the methods in the order given, else the preset's.

    Raises:
        ValueError: If it has other parts, or there is no such preset, kind, task or method.
    """
    if not 3 <= len(word.split("/")) <= 4:
        raise ValueError(f"rows are PRESET/KIND/TASK[/METHOD,METHOD], got {word!r}")
    name, kind, task, *rest = word.split("/")
    preset = get_preset(name)
    chosen = rest[0].split(",") if rest else [*preset.untrained, *preset.methods]
    for method in chosen:
        if method not in UNTRAINED:
            methods.get_method(method)
    preset = dataclasses.replace(
        preset,
        tasks={kind: (task,)},  # type: ignore[dict-item]
        untrained=tuple(m for m in chosen if m in UNTRAINED),
        methods=tuple(m for m in chosen if m not in UNTRAINED),
    )
    return name, sorted(cells(preset), key=lambda cell: chosen.index(cell.method))


def named(preset: str, cell: Cell) -> str:
    """A cell in one word."""
    return "/".join((preset, cell.kind, cell.task, cell.method, cell.tuning))


def resume(path: Path, store: Store) -> None:
    """Take over the records of a file, where there is one, so that their runs are not made again."""
    if path.is_dir():
        for file in sorted(path.rglob("*.jsonl")):
            resume(file, store)
    elif path.is_file():
        for key in store.merge(path).conflicts:
            print(f"{path}: {key} has another result in a file before it, which stays", flush=True)
        print(f"{path.name}: {len(store)} records are there now", flush=True)


def _say(text: str) -> None:
    print(text, flush=True)


def _after(store: Store, out: Path, known: Collection[str], records: Sequence[Record]) -> None:
    """Export at once: nobody knows whether this call will see its end."""
    export(store, out, known)
    for record in records:
        _say(line(record))


def line(record: Record) -> str:
    """A run in one line."""
    config, result = record.config, record.result
    words = [config["task"], config["method"], config["role"], f"lr {config['lr']}", f"seed {config['seed']}"]
    words.append(str(result["status"]))
    for name in ("dev", "test"):
        if result.get(name):
            metric = result[name]["metric"]  # none on dev where it would take generation
            words.append(f"{name} {'–' if metric is None else f'{metric:.3f}'} loss {result[name]['loss']:.3f}")
    words += [str(result.get("message", ""))[:80], f"{result.get('run_seconds', 0.0):.1f} s"]
    return " | ".join(words)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--carried", type=Path, help="folder that this call brought")
    parser.add_argument("--keep", type=Path, required=True, help="folder outside the checkout that stays between calls")
    parser.add_argument("--data", type=Path, required=True, help="the data folder")
    parser.add_argument("--out", type=Path, required=True, help="folder for the exported records")
    parser.add_argument("--minutes", type=float, default=9.0, help="of this call")
    parser.add_argument("--rows", nargs="+", default=list(ROWS), help="PRESET/KIND/TASK[/METHOD,...], first come first")
    parser.add_argument("--cards", type=int, default=1, help="GPUs to use at one time")
    parser.add_argument("--per-card", type=int, default=1, help="calls a GPU, for small captured steps")
    parser.add_argument("--sharing", type=int, default=1, help="set by --per-card: the records' command has it")
    parser.add_argument("--claims", type=Path, help="folder in which calls side by side note the cells that they take")
    parser.add_argument("--resume", type=Path, nargs="+", default=[], help="exported records that stand")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--parts", type=int, default=5, help="number of parts of the GGUF file")
    parser.add_argument("--sha256", help="of the GGUF file")
    parser.add_argument("--masked-parts", type=int, default=2, help="number of parts of the encoder's tar file")
    parser.add_argument("--causal-name", default="gemma", help="of the causal model in the records")
    parser.add_argument("--masked-name", default="MiniLM-L6 with an MLM head trained here")
    parser.add_argument("--head-steps", type=int, default=4000)
    parser.add_argument("--model", action="append", default=[], metavar="KIND=DIR", help="a folder that is ready")
    parser.add_argument("--random-models", action="store_true", help="models need not know English (tests)")
    arguments = parser.parse_args(argv)
    try:
        for word in arguments.rows:
            cells_of(word)
    except ValueError as err:
        parser.error(str(err))
    for word in arguments.model:
        kind, _, folder = word.partition("=")
        if kind not in get_args(Kind) or not folder:
            parser.error(f"--model must be causal=DIR or masked=DIR, got {word}")
    if arguments.carried is not None and not arguments.carried.is_dir():
        parser.error(f"--carried {arguments.carried} is no folder; give the one that this call brought")
    if arguments.carried is not None and arguments.carried.resolve() == arguments.keep.resolve():
        parser.error(f"--carried and --keep are one folder, {arguments.keep}; give two")
    if min(arguments.cards, arguments.per_card) < 1:
        parser.error(f"--cards and --per-card must be at least 1, got {arguments.cards}, {arguments.per_card}")
    if ranks.started() > 1 and arguments.cards * arguments.per_card > 1:
        parser.error("--cards and --per-card make runs side by side; leave them out under torch.distributed.run")
    if ranks.started() > 1 and ":" in arguments.device:
        parser.error(f"--device {arguments.device} is one card for all ranks; --device cuda gives each its own")
    return arguments


def _recipe(arguments: argparse.Namespace) -> ModelParts:
    names = ("keep", "data", "device", "parts", "sha256", "masked_parts", "head_steps")
    return ModelParts(**{name: getattr(arguments, name) for name in names})


def export(store: Store, out: Path, known: Collection[str] = ()) -> None:
    """A folder a preset, a file a task and tuning: none passes the size of a committed file.

    None is written where all keys are known. Full tuning's file is named by the task alone.
    """
    out.mkdir(parents=True, exist_ok=True)
    new = (record for record in store.records() if record.key not in known)
    names = ("kind", "task", "tuning")
    found = {(record.experiment, *(record.config[name] for name in names)) for record in new}
    for name, *values in sorted(found):
        folder = out / name.removeprefix("llm/")
        folder.mkdir(exist_ok=True)
        where = dict(zip(names, values, strict=True))
        stem = "-".join(values).removesuffix("-full")
        try:
            store.export_jsonl(folder / f"{stem}.jsonl", name, where)
        except StoreError as err:
            print(f"{name} {stem}: {err}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
