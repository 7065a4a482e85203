"""Numbers, names and groups as the sections of the page write them. Never imports torch."""

from __future__ import annotations

from collections.abc import Sequence

from helene.lab.report.pages import two_places
from synthetic.analysis.exponents import LEAST_D, Fit
from synthetic.analysis.results import MeasuredCell
from synthetic.analysis.verdicts import Analysed

STARTS = {
    "coordinate": "fixed distance per coordinate",
    "layer": "fixed distance per layer",
    "total": "fixed total distance",
    "layer_gap": "fixed gap per layer",
    "total_gap": "fixed total gap",
}


def by_family(analysed: Sequence[Analysed]) -> list[tuple[str, list[Analysed]]]:
    """The series of each family, in their order."""
    names = dict.fromkeys(a.series.family for a in analysed)
    return [(name, [a for a in analysed if a.series.family == name]) for name in names]


def at(a: Analysed, family: str, start: str) -> bool:
    """Whether a series belongs to this family and start."""
    return (a.series.family, a.series.start) == (family, start)


def unbroken(label: str) -> str:
    """A label that breaks only before its variant."""
    return label.replace(" ", "\N{NO-BREAK SPACE}").replace("\N{NO-BREAK SPACE}(", " (")


def fitted(a: Analysed) -> list[MeasuredCell]:
    """The cells that a row's exponents rest on."""
    least = 0 if a.main.subset == "all" else LEAST_D
    return [cell for cell in a.series.cells if cell.d >= least]


def exponent(fit: Fit, name: str) -> str | None:
    """An exponent with its interval, for people."""
    value = fit.exponent(name)
    if value is None:
        return "d is fixed" if fit.fixed_d and name == "d" else None
    return spread(value)


_GROWS = {"d": "yes", "between": "yes, more slowly than MeZO's", "max_d": "no", "neither": "no, nor with max d_i"}


def grows(a: Analysed) -> str:
    """Whether the steps grow with d: the one verdict of a row, wherever it is shown."""
    if a.verdict == "broken_instrument":
        return "can't tell: a control is off"
    if a.follows == "not_max_d":
        return "d is fixed; not with max d_i"
    return _GROWS.get(a.follows, "can't tell")


def shared(a: Analysed) -> str:
    """Whose runs a row shows, where they are not its own."""
    return (
        f"same runs as from the start “{STARTS.get(a.series.ran_from, a.series.ran_from)}”" if a.series.borrowed else ""
    )


def spread(exponent: tuple[float, float, float]) -> str:
    """``value [low, high]`` to two places."""
    value, low, high = map(two_places, exponent)
    return f"{value} [{low}, {high}]".replace(" ", "\N{NO-BREAK SPACE}")
