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
import importlib
import shutil
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

from helene.lab.store import Store, StoreError
from llm_bench import gguf, mlm_head
from llm_bench.runs.environment import environment
from llm_bench.runs.stepper import engine_available
from llm_bench.tables.execute import Bench, execute, experiment
from llm_bench.tables.plan import cells
from llm_bench.tables.presets import get_preset
from llm_bench.tasks.base import Kind


def main(argv: list[str] | None = None) -> int:
    """Run one call; returns 0 also when runs are left for the next."""
    arguments = _arguments(argv)
    end = time.monotonic() + 60 * arguments.minutes
    keep: Path = arguments.keep
    keep.mkdir(parents=True, exist_ok=True)
    if arguments.carried is not None:
        take(arguments.carried, keep)
    if (keep / "site").is_dir():
        sys.path.append(str(keep / "site"))
        importlib.invalidate_caches()
    models = _models(arguments, keep)
    if not models:
        print(f"carried so far: {', '.join(sorted(p.name for p in keep.iterdir()))}; more must come before runs begin")
        return 0
    left = (end - time.monotonic()) / 60
    preset = get_preset(arguments.preset)
    sources = {name: str(folder) for name, folder in models.values()}
    # No work folder: a run takes half a minute, less than saving it would.
    env = environment(arguments.data, models=sources, device=arguments.device, pretrained=not arguments.random_models)
    device = "cuda" if arguments.device.startswith("cuda") else "cpu"
    more: dict[str, Any] = {"best": "copy"}  # a replay would take longer than the copy it saves
    if device == "cuda" and engine_available():
        more["engine"] = True
    bench = Bench(preset, {kind: name for kind, (name, _) in models.items()}, env, device, more)
    wanted = [cell for cell in cells(preset) if arguments.methods is None or cell.method in arguments.methods]
    with Store(keep / "runs.sqlite") as store:
        missing = execute(bench, wanted, store, minutes=max(left, 0.0), progress=False, say=print)
        _export(store, experiment(preset.name), arguments.out)
    print(f"{missing} runs left" if missing else "all runs are there")
    return 0


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--carried", type=Path, help="folder that this call brought")
    parser.add_argument("--keep", type=Path, required=True, help="folder outside the checkout that stays between calls")
    parser.add_argument("--data", type=Path, required=True, help="the data folder")
    parser.add_argument("--out", type=Path, required=True, help="folder for the exported records")
    parser.add_argument("--minutes", type=float, default=9.0, help="of this call")
    parser.add_argument("--preset", default="small")
    parser.add_argument("--methods", nargs="+", help="only these")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--parts", type=int, default=4, help="number of parts of the GGUF file")
    parser.add_argument("--sha256", help="of the GGUF file")
    parser.add_argument("--masked-parts", type=int, default=2, help="number of parts of the encoder's tar file")
    parser.add_argument("--causal-name", default="Gemma 3 270M (dequantised Q4_K_M)")
    parser.add_argument("--masked-name", default="MiniLM-L6 with an MLM head trained here")
    parser.add_argument("--head-steps", type=int, default=4000)
    parser.add_argument("--head-seconds", type=float, default=180.0)
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


def _models(arguments: argparse.Namespace, keep: Path) -> dict[Kind, tuple[str, Path]]:
    """Name and folder of each model that is ready or can be made of what is there."""
    names: dict[Kind, str] = {"causal": arguments.causal_name, "masked": arguments.masked_name}
    ready: dict[Kind, tuple[str, Path]] = {}
    for word in arguments.model:
        kind, _, folder = word.partition("=")
        ready[kind] = (names[kind], Path(folder))
    if ready:
        return ready
    causal = _causal(arguments, keep)
    if causal is not None:
        ready["causal"] = (names["causal"], causal)
    masked = _masked(arguments, keep)
    if masked is not None:
        ready["masked"] = (names["masked"], masked)
    return ready


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


def _export(store: Store, name: str, out: Path) -> None:
    """One file a task, so that none passes the size of a committed file."""
    out.mkdir(parents=True, exist_ok=True)
    tasks = sorted({(record.config["kind"], record.config["task"]) for record in store.records(name)})
    for kind, task in tasks:
        try:
            store.export_jsonl(out / f"{kind}-{task}.jsonl", name, {"kind": kind, "task": task})
        except StoreError as err:
            print(f"{kind} {task}: {err}")


if __name__ == "__main__":
    raise SystemExit(main())
