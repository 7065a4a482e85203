"""Writing a model's folder whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from llm_bench.models.loading import quiet


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A folder to write a model into, which appears under its name at the end; where another was faster, that stays.

    Raises:
        OSError: If it cannot be written; nothing half written is left.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{folder.name}-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=folder.parent, ignore_cleanup_errors=True) as partial:
        yield Path(partial)
        try:
            os.replace(partial, folder)
        except OSError:
            if not (folder / "config.json").is_file():
                raise


def save(module: Any, tokenizer: Any, folder: Path) -> None:
    """Write weights and tokenizer for `llm_bench.models.loading.load`."""
    with quiet():
        module.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
