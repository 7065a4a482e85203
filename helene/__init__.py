"""Zeroth-order optimizers for PyTorch that never touch the weights to probe them."""

# ruff: noqa: F401 (imported for type checkers, which cannot follow `__getattr__`)

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from helene.methods import ENTRIES

if TYPE_CHECKING:
    from helene.closures import microbatches
    from helene.floors import MeanFloor, QuantileFloor, RadiusFloor
    from helene.layers import layer_groups
    from helene.optimizers.adam import Adam, AdamW, ZOAdam, ZOAdamW
    from helene.optimizers.conservative import ZOConservative
    from helene.optimizers.forward import ForwardGrad
    from helene.optimizers.fzoo import FZOO
    from helene.optimizers.helene import Helene
    from helene.optimizers.hizoo import HiZOO
    from helene.optimizers.lion import Lion, ZOLion
    from helene.optimizers.mezo import MeZO
    from helene.optimizers.momentum import ZOMomentum
    from helene.optimizers.newton import ZONewton
    from helene.optimizers.sgd import SGD
    from helene.optimizers.sign import ZOScalarSign, ZOSign
    from helene.optimizers.sophia import SophiaG, ZOSophia
    from helene.trajectory import Trajectory

__version__ = "0.1.0"

# Loaded at first use: the command line, drawing and pages live in this package and do without torch.
_HOMES = {
    "MeanFloor": "helene.floors",
    "QuantileFloor": "helene.floors",
    "RadiusFloor": "helene.floors",
    "Trajectory": "helene.trajectory",
    "layer_groups": "helene.layers",
    "microbatches": "helene.closures",
    **{entry.cls: f"helene.optimizers.{entry.module}" for entry in ENTRIES},
}
__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
