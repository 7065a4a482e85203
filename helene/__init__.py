"""Zeroth-order optimizers for PyTorch that never touch the weights to probe them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from helene.closures import microbatches
    from helene.floors import MeanFloor, QuantileFloor, RadiusFloor
    from helene.layers import layer_groups
    from helene.optimizers import (
        FZOO,
        SGD,
        Adam,
        AdamW,
        ForwardGrad,
        Helene,
        HiZOO,
        Lion,
        MeZO,
        SophiaG,
        ZOAdam,
        ZOAdamW,
        ZOConservative,
        ZOLion,
        ZOMomentum,
        ZONewton,
        ZOScalarSign,
        ZOSign,
        ZOSophia,
    )
    from helene.trajectory import Trajectory

__all__ = [
    "FZOO",
    "SGD",
    "Adam",
    "AdamW",
    "ForwardGrad",
    "Helene",
    "HiZOO",
    "Lion",
    "MeZO",
    "MeanFloor",
    "QuantileFloor",
    "RadiusFloor",
    "SophiaG",
    "Trajectory",
    "ZOAdam",
    "ZOAdamW",
    "ZOConservative",
    "ZOLion",
    "ZOMomentum",
    "ZONewton",
    "ZOScalarSign",
    "ZOSign",
    "ZOSophia",
    "layer_groups",
    "microbatches",
]
__version__ = "0.1.0"

# Loaded at first use: the command line, drawing and pages live in this package and do without torch.
_HOMES = {
    "MeanFloor": "helene.floors",
    "QuantileFloor": "helene.floors",
    "RadiusFloor": "helene.floors",
    "Trajectory": "helene.trajectory",
    "layer_groups": "helene.layers",
    "microbatches": "helene.closures",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "helene.optimizers")), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
