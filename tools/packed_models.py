"""Models carried to a machine piece by piece: packed by ``python -m tools.packed_models``, made of the pieces there.

The causal model's GGUF file is converted once where it is packed, for its tokenizer, which some versions of
transformers read wrongly from such a file, and for the loss of a known text, by which the other machine checks that it
reads both alike. What is carried, in any number of calls::

    gguf.0, gguf.1, ...           raw parts of the causal model's GGUF file
    causal-tokenizer/             its tokenizer.json (or .json.gz), tokenizer_config.json, known_text.json
    encoder/                      the masked model's encoder folder, or
    masked.0, masked.1, ...       raw parts of a tar file of that folder
    site/                         Python packages that the machine lacks, such as gguf, with their metadata
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import importlib
import io
import math
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from llm_bench.evaluation.preflight import KNOWN_FILE, write_known
from llm_bench.models import loading
from llm_bench.tasks.task import Kind
from tools import gguf, mlm_head

MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class ModelParts:
    """What models are made of.

    Attributes:
        keep: The folder that stays between calls.
        data: The data folder, for the text that a masked-language head is trained on.
        device: To train it on.
        parts: Number of parts of the GGUF file.
        sha256: Of the whole file, or None.
        masked_parts: Number of parts of the encoder's tar file.
        head_steps: Of the head's training.
    """

    keep: Path
    data: Path
    device: str
    parts: int
    sha256: str | None
    masked_parts: int
    head_steps: int

    def take(self, carried: Path) -> None:
        """Move what was carried into the keeping folder."""
        for item in sorted(carried.iterdir()):
            target = self.keep / item.name
            if target.is_dir():
                shutil.rmtree(target)
            shutil.move(str(item), target)

    def make(self, kind: Kind) -> Path | None:
        """The folder of a kind's model, made where what it is made of is there; else None."""
        site = str(self.keep / "site")
        if Path(site).is_dir() and site not in sys.path:
            sys.path.append(site)
            importlib.invalidate_caches()
        return self._causal() if kind == "causal" else self._masked()

    def _causal(self) -> Path | None:
        folder, whole, tokenizer = (self.keep / name for name in ("causal", "causal.gguf", "causal-tokenizer"))
        parts = [self.keep / f"gguf.{i}" for i in range(self.parts)]
        if (folder / "config.json").is_file():
            return folder
        if not tokenizer.is_dir():
            return None
        if not whole.is_file():  # it may be there from a call that ended while converting
            if not all(part.is_file() for part in parts):
                return None
            gguf.join(parts, whole, self.sha256)
        for part in parts:
            part.unlink(missing_ok=True)
        print("converting the causal model", flush=True)
        return gguf.convert(whole, folder, tokenizer)

    def _masked(self) -> Path | None:
        folder, encoder = self.keep / "masked", self.keep / "encoder"
        if (folder / "config.json").is_file():
            return folder
        parts = [self.keep / f"masked.{i}" for i in range(self.masked_parts)]
        if not encoder.is_dir() and all(part.is_file() for part in parts):
            with tarfile.open(gguf.join(parts, self.keep / "encoder.tar")) as tar:
                tar.extractall(self.keep, filter="data")
        if not encoder.is_dir():
            return None
        texts = mlm_head.texts_of(self.data)
        print(f"training a masked-language head on {len(texts)} training sentences", flush=True)
        mlm_head.train_head(encoder, texts, folder, steps=self.head_steps, device=self.device)
        return folder


def main(argv: Sequence[str] | None = None) -> int:
    """Write the folders, and print what the other machine must be told of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gguf", type=Path, required=True, help="file of the causal model")
    parser.add_argument("--encoder", type=Path, help="folder of the masked model's encoder")
    parser.add_argument("--out", type=Path, required=True, help="folder of the folders 0, 1, ...")
    parser.add_argument("--mebibytes", type=float, default=52.0, help="most of one folder")
    arguments = parser.parse_args(argv)
    most = int(arguments.mebibytes * MEBIBYTE)
    whole = arguments.gguf.read_bytes()
    parts = split(whole, most, "gguf")
    with tempfile.TemporaryDirectory() as folder:
        converted = gguf.convert(arguments.gguf, Path(folder) / "model")
        write_known(loading.load(converted, "causal", "float32"), converted)
        small = pack_tokenizer(converted) | package("gguf")
    masked = split(archive(arguments.encoder), most, "masked") if arguments.encoder is not None else {}
    folders = write(arguments.out, [small, *({name: data} for name, data in (parts | masked).items())], most)
    told = f"--parts {len(parts)} --masked-parts {len(masked)} --sha256 {hashlib.sha256(whole).hexdigest()}"
    print(f"{len(folders)} folders in {arguments.out}; tell tools.gpu_rows: {told}")
    return 0


def split(data: bytes, most: int, name: str) -> dict[str, bytes]:
    """Equal parts ``name.0``, ``name.1``, ... of at most so many bytes."""
    count = max(1, math.ceil(len(data) / most))
    size = math.ceil(len(data) / count)
    return {f"{name}.{i}": data[i * size : (i + 1) * size] for i in range(count)}


def archive(folder: Path) -> bytes:
    """A tar file that holds a model folder as ``encoder``."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as tar:
        tar.add(folder, "encoder")
    return held.getvalue()


def pack_tokenizer(model: Path) -> dict[str, bytes]:
    """The files of a model's tokenizer, packed, and the loss of the known text."""
    found = {"causal-tokenizer/tokenizer.json.gz": gzip.compress((model / "tokenizer.json").read_bytes())}
    for name in ("tokenizer_config.json", KNOWN_FILE):
        found[f"causal-tokenizer/{name}"] = (model / name).read_bytes()
    return found


def package(name: str) -> dict[str, bytes]:
    """The files of an installed package, its metadata included.

    Raises:
        ValueError: If it is not installed.
    """
    try:
        files = metadata.distribution(name).files or []
    except metadata.PackageNotFoundError as err:
        raise ValueError(f"{name} is not installed, so it cannot be packed; pip install {name}") from err
    kept = [path for path in files if ".." not in path.parts and path.suffix in ("", ".py")]  # no scripts
    return {f"site/{path}": Path(str(path.locate())).read_bytes() for path in kept}


def write(out: Path, pieces: Sequence[dict[str, bytes]], most: int) -> list[Path]:
    """Put pieces, each of which stays together, into as few folders of about ``most`` bytes as fit them in order.

    Raises:
        ValueError: If ``out`` holds anything but such folders, which are replaced.
    """
    there = sorted(out.iterdir()) if out.is_dir() else []
    if other := [path.name for path in there if not (path.name.isdigit() and path.is_dir())]:
        raise ValueError(f"{out} holds {other[0]}, which would be deleted; give --out a folder of its own")
    shutil.rmtree(out, ignore_errors=True)
    folders: list[Path] = []
    left = 0
    for piece in pieces:
        size = sum(map(len, piece.values()))
        if not folders or size > left:
            folders.append(out / str(len(folders)))
            left = most
        left -= size
        for name, data in piece.items():
            path = folders[-1] / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    return folders


if __name__ == "__main__":
    raise SystemExit(main())
