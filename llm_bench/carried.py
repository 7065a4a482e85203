"""Models made of what was carried to a machine piece by piece, kept in a folder of its own.

Files that may come, in any number of calls::

    gguf.0, gguf.1, ...           raw parts of the causal model's GGUF file
    causal-tokenizer/             its tokenizer.json (or .json.gz), tokenizer_config.json, known_text.json
    encoder/                      the masked model's encoder folder, or
    masked.0, masked.1, ...       raw parts of a tar file of that folder
    site/                         Python packages that the machine lacks, such as gguf, with their .dist-info
"""

from __future__ import annotations

import importlib
import shutil
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

from llm_bench import gguf, mlm_head
from llm_bench.tasks.base import Kind


@dataclass(frozen=True)
class Recipe:
    """What models are made of.

    Attributes:
        keep: The folder that stays between calls.
        data: The data folder, for the text that a masked-language head is trained on.
        device: To train it on.
        parts: Number of parts of the GGUF file.
        sha256: Of the whole file, or None.
        masked_parts: Number of parts of the encoder's tar file.
        head_steps: Of the head's training.
        head_seconds: And its longest time.
    """

    keep: Path
    data: Path
    device: str
    parts: int
    sha256: str | None
    masked_parts: int
    head_steps: int
    head_seconds: float

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
        mlm_head.train_head(
            encoder, texts, folder, steps=self.head_steps, seconds=self.head_seconds, device=self.device
        )
        return folder
