"""What explains a win over MeZO: which matched controls do as well. Never imports torch.

A method wins where the 95 % interval of its steps over tuned MeZO's lies below 1. A control explains the win where, on
their common cells, it needs at most 3 % more steps than the winner within its interval. Only a win that no control
explains is the curvature's, and only if the controls that speak to it were run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from synthetic.analysis import Analysed, ratio_of
from synthetic.results import TITLES, Series

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
        cause: "no win", "unexplained", "curvature", or the names of the controls that do as well.
    """

    candidate: Series
    ratio: tuple[float, float, float]
    rivals: dict[str, tuple[float, float, float]]
    cause: str


def explain(analysed: Sequence[Analysed]) -> list[Explained]:
    """Every candidate that was compared with MeZO, in the order given; borrowed starts are left out."""
    out = []
    for a in analysed:
        s = a.series
        if s.method not in CANDIDATES or a.ratio is None or s.borrowed or s.variant:
            continue
        rivals = {}
        for b in analysed:
            same = (b.series.family, b.series.start) == (s.family, s.start)
            if same and b.series.method in CONTROLS_OF_A_WIN and not b.series.variant:
                ratio = ratio_of(b.series, s)
                if ratio is not None:
                    rivals[b.series.method] = ratio
        out.append(Explained(s, a.ratio, rivals, _cause(a.ratio, rivals)))
    return out


def _cause(ratio: tuple[float, float, float], rivals: dict[str, tuple[float, float, float]]) -> str:
    if ratio[2] >= 1.0:
        return "no win"
    equal = [TITLES.get(name, name) for name, (_, low, _) in rivals.items() if low <= _SLACK]
    if equal:
        return ", ".join(equal)
    return "curvature" if set(_NEEDED) <= set(rivals) else "unexplained"
