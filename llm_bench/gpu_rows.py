"""Real rows on one GPU, in pieces of minutes: ``python -m llm_bench.gpu_rows``.

Made for a machine that is given for minutes at a time, without a network, and takes files piece by piece. Each call
takes what was carried into its keeping folder; once all is there it converts the models, trains the masked-language
head, and goes on with the preset's runs where the last call stopped. What was measured is exported after each call.

Carried, in any number of calls (a call takes away what it finds)::

    gguf.0, gguf.1, ...           raw parts of the causal model's GGUF file
    causal-tokenizer/             its tokenizer.json (or .json.gz), tokenizer_config.json, known_text.json
    encoder/                      the masked model's encoder folder, or
    masked.0, masked.1, ...       raw parts of a tar file of that folder
    site/                         Python packages that the machine lacks, such as gguf
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import shutil
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from helene.lab.store import Record, Store, StoreError
from llm_bench import gguf, methods, mlm_head
from llm_bench.runs.config import UNTRAINED
from llm_bench.runs.environment import environment
from llm_bench.runs.stepper import engine_available
from llm_bench.tables.execute import Bench, execute
from llm_bench.tables.plan import Cell, cells
from llm_bench.tables.presets import get_preset
from llm_bench.tasks.base import Kind

# Of most value first: what a call has no time for is the least.
ROWS = (
    "small/causal/sst2/mezo",
    "small/causal/sst2/helene",
    "small/causal/sst2/zero-shot,bias-only,linear-probe,icl",
    "parts/causal/sst2",
    "brief/causal/copa/zero-shot,mezo,helene",
    "brief/masked/sst2/zero-shot,bias-only,linear-probe,mezo,helene",
    "small/causal/copa/zero-shot,mezo,helene",
    "small/masked/sst2/zero-shot,bias-only,linear-probe,mezo,helene",
)


def main(argv: list[str] | None = None) -> int:
    """Run one call; returns 0 also when runs are left for the next, or when it was interrupted."""
    arguments = _arguments(argv)
    end = time.monotonic() + 60 * arguments.minutes
    keep: Path = arguments.keep
    keep.mkdir(parents=True, exist_ok=True)
    if arguments.carried is not None:
        take(arguments.carried, keep)
    if (keep / "site").is_dir():
        sys.path.append(str(keep / "site"))
        importlib.invalidate_caches()
    with Store(keep / "runs.sqlite") as store:
        for path in arguments.resume:
            resume(path, store)
        try:
            return _rows(arguments, keep, store, end)
        except KeyboardInterrupt:
            print("interrupted: the run under way is lost, those before it are exported", flush=True)
            return 0
        finally:
            export(store, arguments.out)


def _rows(arguments: argparse.Namespace, keep: Path, store: Store, end: float) -> int:
    device = "cuda" if arguments.device.startswith("cuda") else "cpu"
    more: dict[str, Any] = {"best": "copy"}  # a replay would take longer than the copy it saves
    if device == "cuda" and engine_available():
        more["engine"] = True
    wanted: list[tuple[str, list[Cell]]] = []
    for word in arguments.rows:
        name, found = cells_of(word)
        kept = [c for c in found if arguments.methods is None or c.method in arguments.methods]
        wanted.append((name, [c for c in kept if arguments.tasks is None or c.task in arguments.tasks]))
    kinds = {cell.kind for _, some in wanted for cell in some}
    models = _models(arguments, keep, kinds)
    if not models:
        there = sorted(path.name for path in keep.iterdir() if not path.name.startswith("runs.sqlite"))
        print(f"carried so far: {', '.join(there)}; more must come before runs begin")
        return 0
    missing = 0
    for name, some in wanted:
        for kind in dict.fromkeys(cell.kind for cell in some):
            here = [cell for cell in some if cell.kind == kind]
            if kind == "masked" and "masked" not in models and time.monotonic() < end:
                models |= _made_masked(arguments, keep)
            if kind not in models:
                missing += len(here)
                continue
            sources = {model: str(folder) for model, folder in models.values()}
            # No work folder: a run takes half a minute, less than saving it would.
            env = environment(
                arguments.data, models=sources, device=arguments.device, pretrained=not arguments.random_models
            )
            bench = Bench(get_preset(name), {kind: models[kind][0]}, env, device, more)
            left = max(0.0, (end - time.monotonic()) / 60)
            missing += execute(
                bench,
                here,
                store,
                minutes=left,
                progress=False,
                say=_say,
                after=lambda records: _after(store, arguments.out, records),
            )
    print(f"{missing} runs left" if missing else "all runs are there", flush=True)
    return 0


def cells_of(word: str) -> tuple[str, list[Cell]]:
    """Preset and cells of ``PRESET/KIND/TASK[/METHOD,METHOD]``; the methods in the order given, else the preset's.

    Raises:
        ValueError: If there is no such preset, kind, task or method.
    """
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


def resume(path: Path, store: Store) -> None:
    """Take over the records of a file, where there is one, so that their runs are not made again."""
    if path.is_dir():
        for file in sorted(path.glob("*.jsonl")):
            resume(file, store)
    elif path.is_file():
        store.merge(path)
        print(f"{path.name}: {len(store)} records are there now", flush=True)


def _say(text: str) -> None:
    print(text, flush=True)


def _after(store: Store, out: Path, records: Sequence[Record]) -> None:
    """Export at once: nobody knows whether this call will see its end."""
    export(store, out)
    for record in records:
        _say(line(record))


def line(record: Record) -> str:
    """A run in one line."""
    config, result = record.config, record.result
    words = [config["task"], config["method"], config["role"], f"lr {config['lr']}", f"seed {config['seed']}"]
    words.append(str(result["status"]))
    for name in ("dev", "test"):
        if result.get(name):
            words.append(f"{name} {result[name]['metric']:.3f} loss {result[name]['loss']:.3f}")
    words += [str(result.get("message", ""))[:80], f"{result.get('run_seconds', 0.0):.1f} s"]
    return " | ".join(words)


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--carried", type=Path, help="folder that this call brought")
    parser.add_argument("--keep", type=Path, required=True, help="folder outside the checkout that stays between calls")
    parser.add_argument("--data", type=Path, required=True, help="the data folder")
    parser.add_argument("--out", type=Path, required=True, help="folder for the exported records")
    parser.add_argument("--minutes", type=float, default=9.0, help="of this call")
    parser.add_argument("--rows", nargs="+", default=list(ROWS), help="PRESET/KIND/TASK[/METHOD,...], first come first")
    parser.add_argument("--methods", nargs="+", help="of the rows only these")
    parser.add_argument("--tasks", nargs="+", help="of the rows only these")
    parser.add_argument("--resume", type=Path, nargs="+", default=[], help="exported records that stand")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--parts", type=int, default=5, help="number of parts of the GGUF file")
    parser.add_argument("--sha256", help="of the GGUF file")
    parser.add_argument("--masked-parts", type=int, default=2, help="number of parts of the encoder's tar file")
    parser.add_argument("--causal-name", default="gemma", help="of the causal model in the records")
    parser.add_argument("--masked-name", default="MiniLM-L6 with an MLM head trained here")
    parser.add_argument("--head-steps", type=int, default=4000)
    parser.add_argument("--head-seconds", type=float, default=90.0)
    parser.add_argument("--model", action="append", default=[], metavar="KIND=DIR", help="a folder that is ready")
    parser.add_argument("--random-models", action="store_true", help="models need not know English (tests)")
    return parser.parse_args(argv)


def take(carried: Path, keep: Path) -> None:
    """Move what was carried into the keeping folder."""
    for item in sorted(carried.iterdir()):
        target = keep / item.name
        if target.is_dir():
            shutil.rmtree(target)
        shutil.move(str(item), target)


def _models(arguments: argparse.Namespace, keep: Path, kinds: set[Kind]) -> dict[Kind, tuple[str, Path]]:
    """Name and folder of each wanted model that is ready, or can be made of what is there without training a head."""
    ready: dict[Kind, tuple[str, Path]] = {}
    for word in arguments.model:
        kind, _, folder = word.partition("=")
        ready[kind] = (_name(arguments, kind), Path(folder))
    if ready:
        return ready
    if "causal" in kinds:
        causal = _causal(arguments, keep)
        if causal is not None:
            ready["causal"] = (_name(arguments, "causal"), causal)
    if "masked" in kinds and (not ready or (keep / "masked" / "config.json").is_file()):
        ready |= _made_masked(arguments, keep)
    return ready


def _made_masked(arguments: argparse.Namespace, keep: Path) -> dict[Kind, tuple[str, Path]]:
    masked = _masked(arguments, keep)
    return {} if masked is None else {"masked": (_name(arguments, "masked"), masked)}


def _name(arguments: argparse.Namespace, kind: Kind) -> str:
    return str(arguments.causal_name if kind == "causal" else arguments.masked_name)


def _causal(arguments: argparse.Namespace, keep: Path) -> Path | None:
    folder = keep / "causal"
    if (folder / "config.json").is_file():
        return folder
    whole, parts = keep / "causal.gguf", [keep / f"gguf.{i}" for i in range(arguments.parts)]
    if not (keep / "causal-tokenizer").is_dir():
        return None
    if not whole.is_file():  # it may be there from a call that ended while converting
        if not all(part.is_file() for part in parts):
            return None
        gguf.join(parts, whole, arguments.sha256)
    for part in parts:
        part.unlink(missing_ok=True)
    print("converting the causal model")
    return gguf.convert(whole, folder, keep / "causal-tokenizer")


def _masked(arguments: argparse.Namespace, keep: Path) -> Path | None:
    folder, encoder = keep / "masked", keep / "encoder"
    if (folder / "config.json").is_file():
        return folder
    parts = [keep / f"masked.{i}" for i in range(arguments.masked_parts)]
    if not encoder.is_dir() and all(part.is_file() for part in parts):
        with tarfile.open(gguf.join(parts, keep / "encoder.tar")) as tar:
            tar.extractall(keep, filter="data")
    if not encoder.is_dir():
        return None
    texts = mlm_head.texts_of(arguments.data)
    print(f"training a masked-language head on {len(texts)} training sentences")
    mlm_head.train_head(
        encoder, texts, folder, steps=arguments.head_steps, seconds=arguments.head_seconds, device=arguments.device
    )
    return folder


def export(store: Store, out: Path) -> None:
    """One file a preset and task, so that none passes the size of a committed file."""
    out.mkdir(parents=True, exist_ok=True)
    found = {(record.experiment, record.config["kind"], record.config["task"]) for record in store.records()}
    for name, kind, task in sorted(found):
        try:
            store.export_jsonl(
                out / f"{name.removeprefix('llm/')}-{kind}-{task}.jsonl", name, {"kind": kind, "task": task}
            )
        except StoreError as err:
            print(f"{name} {kind} {task}: {err}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
