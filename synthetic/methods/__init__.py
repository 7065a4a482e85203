"""The methods, by name."""

from __future__ import annotations

from synthetic.methods.base import Method
from synthetic.methods.first import (
    DiagonalClip,
    DiagonalFloor,
    GradientDescent,
    TheoremOneClip,
    TheoremTunedClip,
    TheoremUpdate,
)
from synthetic.methods.matched import GrowingStep, HeleneLayerFloors, HeleneMean, HeleneShuffled, LayerSteps
from synthetic.methods.rivals import OneLayerInTurn, ZOAdam, ZOSophia
from synthetic.methods.zeroth import HeavyBall, Helene, MeZO, OneDirectionPerLayer

_ALL: tuple[Method, ...] = (
    TheoremUpdate(),
    TheoremOneClip(),
    TheoremTunedClip(),
    GradientDescent(),
    DiagonalFloor(),
    DiagonalClip(),
    MeZO(),
    HeavyBall(),
    Helene(),
    OneDirectionPerLayer(),
    OneLayerInTurn(),
    ZOAdam(),
    ZOSophia(),
    HeleneMean(),
    HeleneShuffled(),
    HeleneLayerFloors(),
    LayerSteps(),
    GrowingStep(),
)
METHODS: dict[str, Method] = {method.name: method for method in _ALL}
