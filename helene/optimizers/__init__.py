"""The optimizers, a file a rule, each with an entry in `helene.methods`; their arithmetic is in `helene.rules`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from helene.methods import ENTRIES

_MODULES = {entry.cls: f"{__name__}.{entry.module}" for entry in ENTRIES}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
