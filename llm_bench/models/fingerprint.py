"""What a model folder holds, in sixteen digits: configuration, tokenizer and every byte of the weights."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from helene.inputs.files import write_whole

_WEIGHTS = (".safetensors", ".bin", ".index.json")
_TOKENIZER = ("tokenizer", "vocab", "merges", "special_tokens", "added_tokens", "spiece", "sentencepiece")
_VOLATILE = ("_name_or_path", "transformers_version", "_commit_hash")
_SETTLED_SECONDS = 2.0  # a file younger than this may change once more without a new time


def cache_folder() -> Path:
    """Where tiny models, tokens and digests of files are kept.

    Raises:
        OSError: If the user has no home folder and HELENE_CACHE names no other.
    """
    named = os.environ.get("HELENE_CACHE")
    try:
        return Path(named) if named else Path.home() / ".cache" / "helene"
    except RuntimeError as err:
        raise OSError("there is no home folder to keep the cache in; set HELENE_CACHE to a folder") from err


def fingerprint(source: str | os.PathLike[str], config: Any) -> str:
    """Sixteen digits of a folder's content; of a name on the Hub, those of its commit.

    Args:
        source: A folder, or a name on the Hub.
        config: The transformers configuration of it.
    """
    digest = hashlib.sha256()
    kept = {name: value for name, value in config.to_dict().items() if name not in _VOLATILE}
    digest.update(json.dumps(kept, sort_keys=True, default=str).encode())
    if not os.path.isdir(source):
        digest.update(f"{source}@{getattr(config, '_commit_hash', None)}".encode())
    for path in _files(Path(source)):
        digest.update(f"\n{path.name} {content_digest(path)}".encode())
    return digest.hexdigest()[:16]


def identities(source: str | os.PathLike[str]) -> tuple[Any, ...]:
    """What changes when a file of the folder does, without reading one; empty for a name on the Hub."""
    folder = Path(source)
    return tuple(_identity(path) for path in (*_files(folder), folder / "config.json") if path.is_file())


def content_digest(path: Path) -> str:
    """SHA-256 of a file's bytes; read once, then known by its path, size, times and inode, in later processes too."""
    identity = _identity(path)
    known = _digest_of(identity)
    if known is None:
        with path.open("rb") as file:
            known = hashlib.file_digest(file, "sha256").hexdigest()
        if time.time() - path.stat().st_mtime > _SETTLED_SECONDS and _identity(path) == identity:
            with contextlib.suppress(OSError):
                kept = _kept(identity)
                kept.parent.mkdir(parents=True, exist_ok=True)
                write_whole(kept, lambda partial: partial.write_text(known))
    return known


def _digest_of(identity: tuple[Any, ...]) -> str | None:
    with contextlib.suppress(OSError):
        text = _kept(identity).read_text()
        if len(text) == hashlib.sha256().digest_size * 2:
            return text
    return None


def _kept(identity: tuple[Any, ...]) -> Path:
    return cache_folder() / "digests" / hashlib.sha256(repr(identity).encode()).hexdigest()[:24]


def _identity(path: Path) -> tuple[Any, ...]:
    found = path.stat()
    return str(path.resolve()), found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_dev, found.st_ino


def _files(folder: Path) -> Iterator[Path]:
    """Files of weights and of the tokenizer, by name."""
    if folder.is_dir():
        for path in sorted(folder.iterdir()):
            if path.is_file() and (path.name.endswith(_WEIGHTS) or path.name.startswith(_TOKENIZER)):
                yield path
