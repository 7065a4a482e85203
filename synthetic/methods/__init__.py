"""The methods, by name."""

from __future__ import annotations

from synthetic.methods.base import Method
from synthetic.methods.first import GradientDescent, TheoremOneClip, TheoremUpdate
from synthetic.methods.zeroth import HeavyBall, Helene, MeZO, OneDirectionPerLayer

_ALL: tuple[Method, ...] = (
    TheoremUpdate(),
    TheoremOneClip(),
    GradientDescent(),
    MeZO(),
    HeavyBall(),
    Helene(),
    OneDirectionPerLayer(),
)
METHODS: dict[str, Method] = {method.name: method for method in _ALL}
