"""The optimizers, one file a rule; their arithmetic is in `helene.functional`."""

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
    "SophiaG",
    "ZOAdam",
    "ZOAdamW",
    "ZOConservative",
    "ZOLion",
    "ZOMomentum",
    "ZONewton",
    "ZOScalarSign",
    "ZOSign",
    "ZOSophia",
]
