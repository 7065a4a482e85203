"""Zeroth-order optimizers for PyTorch that never touch the weights to probe them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from helene.layers import layer_groups
    from helene.optimizers import Helene, MeZO

__all__ = ["Helene", "MeZO", "layer_groups"]
__version__ = "0.1.0"

# Loaded at first use: the command line, drawing and pages live in this package and do without torch.
_HOMES = {"Helene": "helene.optimizers", "MeZO": "helene.optimizers", "layer_groups": "helene.layers"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
