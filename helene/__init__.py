"""Zeroth-order optimizers for PyTorch that never touch the weights to probe them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from helene.methods import ENTRIES

if TYPE_CHECKING:
    from helene.evaluation.closures import microbatches as microbatches
    from helene.inputs.layers import layer_groups as layer_groups
    from helene.optimizers.adam import Adam as Adam
    from helene.optimizers.adam import AdamW as AdamW
    from helene.optimizers.adam import ZOAdam as ZOAdam
    from helene.optimizers.adam import ZOAdamW as ZOAdamW
    from helene.optimizers.conservative import ZOConservative as ZOConservative
    from helene.optimizers.forward import ForwardGrad as ForwardGrad
    from helene.optimizers.fzoo import FZOO as FZOO
    from helene.optimizers.grouped import GroupedMeZO as GroupedMeZO
    from helene.optimizers.helene import Helene as Helene
    from helene.optimizers.hizoo import HiZOO as HiZOO
    from helene.optimizers.lion import Lion as Lion
    from helene.optimizers.lion import ZOLion as ZOLion
    from helene.optimizers.mezo import MeZO as MeZO
    from helene.optimizers.momentum import ZOMomentum as ZOMomentum
    from helene.optimizers.newton import ZONewton as ZONewton
    from helene.optimizers.sgd import SGD as SGD
    from helene.optimizers.sign import ZOScalarSign as ZOScalarSign
    from helene.optimizers.sign import ZOSign as ZOSign
    from helene.optimizers.sophia import SophiaG as SophiaG
    from helene.optimizers.sophia import ZOSophia as ZOSophia
    from helene.rules.floors import MeanFloor as MeanFloor
    from helene.rules.floors import QuantileFloor as QuantileFloor
    from helene.rules.floors import RadiusFloor as RadiusFloor
    from helene.steps.trajectory import Trajectory as Trajectory

__version__ = "0.1.0"

# Loaded at first use: the command line, drawing and pages live in this package and do without torch.
_HOMES = {
    "MeanFloor": "helene.rules.floors",
    "QuantileFloor": "helene.rules.floors",
    "RadiusFloor": "helene.rules.floors",
    "Trajectory": "helene.steps.trajectory",
    "layer_groups": "helene.inputs.layers",
    "microbatches": "helene.evaluation.closures",
    **{entry.cls: "helene.optimizers" for entry in ENTRIES},
}
__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
