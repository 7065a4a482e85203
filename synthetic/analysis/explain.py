"""What explains a difference from MeZO: which matched controls do as the method does. Never imports torch.

A method wins where the 95 % interval of its steps over tuned MeZO's lies below 1, loses where it lies above. A control
explains a win where, on their common cells, it needs at most 3 % more steps than the winner within its interval; only
a win that no control explains is the curvature's, and only if the controls that speak to it were run. A control
explains a loss where it needs as many steps as the loser, within 3 % and its interval: what they share costs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from synthetic.analysis.exponents import ratio_of
from synthetic.analysis.results import TITLES, Series

CANDIDATES = ("helene", "helene_layer_floors")
CONTROLS_OF_A_WIN = (
    "heavy_ball",
    "helene_mean",
    "helene_shuffled",
    "mezo_layer_steps",
    "mezo_growing",
    "zo_sophia",
)
_NEEDED = ("heavy_ball", "helene_mean", "helene_shuffled")
_SLACK = 1.03


@dataclass(frozen=True)
class Explained:
    """One candidate in one family and start.

    Attributes:
        candidate: Its series.
        ratio: Its steps over MeZO's, with interval.
        rivals: Per control that was run, its steps over the candidate's on common cells, with interval.
        outcome: "win", "loss" or "draw".
        cause: "curvature", "unexplained", "none needed", or the names of the controls that do as it does.
    """

    candidate: Series
    ratio: tuple[float, float, float]
    rivals: dict[str, tuple[float, float, float]]
    outcome: str
    cause: str


def explain(series: Series, ratio: tuple[float, float, float] | None, members: Sequence[Series]) -> Explained | None:
    """What explains a series' ratio to MeZO, given all series of its family and start.

    A variant is explained by controls of the same variant. None for methods that are no candidates, for variants
    without controls, and for borrowed starts: their runs are explained once.
    """
    if series.method not in CANDIDATES or ratio is None or series.borrowed:
        return None
    rivals = {}
    for other in members:
        if other.method in CONTROLS_OF_A_WIN and other.variant == series.variant:
            against = ratio_of(other, series)
            if against is not None:
                rivals[other.method] = against
    if series.variant and not rivals:
        return None
    outcome = outcome_of(ratio)
    return Explained(candidate=series, ratio=ratio, rivals=rivals, outcome=outcome, cause=_cause(outcome, rivals))


def outcome_of(ratio: tuple[float, float, float]) -> str:
    """How a method fares by its steps over MeZO's and their interval: "win", "loss" or "draw"."""
    return "win" if ratio[2] < 1.0 else "loss" if ratio[1] > 1.0 else "draw"


def _cause(outcome: str, rivals: dict[str, tuple[float, float, float]]) -> str:
    if outcome == "draw":
        return "none needed"
    alike = {
        name: low <= _SLACK and (outcome == "win" or high >= 1.0 / _SLACK) for name, (_, low, high) in rivals.items()
    }
    equal = [TITLES.get(name, name) for name, same in alike.items() if same]
    if equal:
        return "; ".join(equal)
    return "curvature" if outcome == "win" and set(_NEEDED) <= set(rivals) else "unexplained"
