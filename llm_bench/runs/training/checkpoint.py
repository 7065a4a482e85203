"""What lets a run go on after SIGKILL, bit for bit: written whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from helene.inputs.files import write_whole
from llm_bench.models.tuning import trained

STATE, BEST = "state.pt", "best.pt"


class Folder:
    """The folder of one run under way; with None as parent nothing is kept."""

    def __init__(self, parent: str | None, key: str) -> None:
        self.path = None if parent is None else Path(parent) / key

    def check(self) -> None:
        """Raise ValueError where nothing can be written, before a run takes its time."""
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self.path.parent).close()
        except OSError as err:
            raise ValueError(
                f"cannot write to {self.path.parent}, where runs under way are kept: {err.strerror}; choose another "
                "folder by --work, or another --store"
            ) from err

    def save(self, name: str, values: dict[str, Any]) -> None:
        """Write values (tensors, numbers, strings, lists, dicts) under a name.

        Raises:
            ValueError: If the disk is full or the folder cannot be written.
        """
        if self.path is None:
            return

        def write(partial: Path) -> None:
            partial.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as file:
                try:
                    torch.save(values, file)
                except RuntimeError as err:  # torch's own writer turns a full disk into one
                    raise OSError(str(err)) from err
                file.flush()
                os.fsync(file.fileno())

        try:
            write_whole(self.path / name, write)
        except OSError as err:
            raise ValueError(f"{err}; what was finished is in the store") from err

    def load(self, name: str, device: torch.device) -> dict[str, Any] | None:
        """What was saved under the name, or None (also where the file is damaged: the run then begins anew)."""
        if self.path is None or not (self.path / name).is_file():
            return None
        try:
            return torch.load(self.path / name, map_location=device, weights_only=True)
        except Exception:
            return None

    def remove(self) -> None:
        """Nothing is under way any more."""
        if self.path is not None:
            shutil.rmtree(self.path, ignore_errors=True)


def weights(module: nn.Module, device: str | torch.device | None = None) -> dict[str, torch.Tensor]:
    """A copy of what is trained."""
    return {name: p.detach().to(device or p.device, copy=True) for name, p in trained(module)}


@torch.no_grad()
def put_weights(module: nn.Module, kept: dict[str, torch.Tensor]) -> None:
    """Put a copy back."""
    for name, parameter in trained(module):
        parameter.copy_(kept[name])
