"""The methods by name: an optimizer of `helene.methods` that has no class here is simulated by its rule."""

from __future__ import annotations

from helene.methods import ENTRIES
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
from synthetic.methods.rivals import OneLayerInTurn, Simulated, ZOSophia
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
    ZOSophia(),
    HeleneMean(),
    HeleneShuffled(),
    HeleneLayerFloors(),
    LayerSteps(),
    GrowingStep(),
)
_NAMES = [method.name for method in _ALL]
METHODS: dict[str, Method] = {method.name: method for method in _ALL} | {
    entry.grid_name: Simulated(entry)
    for entry in ENTRIES
    if entry.scaling is not None and entry.grid_name not in _NAMES
}
