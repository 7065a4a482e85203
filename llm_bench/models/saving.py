"""Writing a model's folder whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from helene.inputs.files import write_folder
from llm_bench.models.loading import quiet


def save(module: Any, tokenizer: Any, folder: Path, more: Callable[[Path], object] = lambda partial: None) -> None:
    """Write weights and tokenizer for `llm_bench.models.loading.load`; a folder that is there stays as it is.

    Args:
        module: The transformers model.
        tokenizer: Its tokenizer.
        folder: Where.
        more: Writes what else belongs into the folder that it is told.

    Raises:
        OSError: If it cannot be written; nothing half written is left.
    """

    def write(partial: Path) -> None:
        with quiet():
            module.save_pretrained(partial)
            tokenizer.save_pretrained(partial)
        more(partial)

    write_folder(folder, write)
