"""The colour of a method, as its place in the palette: one for each method below, in every figure of the project."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import cycle

from helene.lab.report.drawing import PALETTE

_EVERYWHERE = {"mezo": 0, "helene": 1}
PLACES = {
    **_EVERYWHERE,
    "zo-sgd-mmt": 2,
    "heavy_ball": 2,  # zo-sgd-mmt, as `synthetic` names it
    "zo-adam": 5,
    "helene-corrected": 3,
    "helene-backprop": 4,
    "ft-adam": 7,
    "fzoo": 7,
    "mezo-grouped": 4,
    "mezo-grouped-4": 3,
    "mezo-grouped-16": 6,
    "per_layer": 3,
    "gradient_descent": 7,
    "theorem": 6,
    "theorem_one_clip": 4,
    "theorem_tuned_clip": 3,
    "diagonal_floor": 5,
    "diagonal_clip": 2,
}


def places_of(names: Iterable[str]) -> dict[str, int]:
    """Each method's place: its own, else the next that is neither MeZO's nor HELENE's nor another name's own."""
    known = list(dict.fromkeys(names))
    taken = {PLACES[name] for name in known if name in PLACES} | set(_EVERYWHERE.values())
    free = cycle([place for place in range(len(PALETTE)) if place not in taken] or range(2, len(PALETTE)))
    return {name: PLACES[name] if name in PLACES else next(free) for name in known}
