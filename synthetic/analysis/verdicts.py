r"""Controls and verdicts, by rules that were fixed before the runs, two excepted. Never imports torch.

*Controls.* Theory predicts alpha and beta of both controls on the very cells that were measured. A control passes if
both differ from the prediction by at most 0.05 plus half the 95 % interval; if one of them fails, the instrument is
broken and nothing else is concluded from that family and start. Cells whose median by theory itself may be a
miss or far beyond the best (their range of 95 % has no end) determine no exponent: they are left out of both
sides, whatever was measured there (this was added after the runs).

*Verdicts.* beta is read on a scale on which the positive control's predicted beta is 0 and the negative one's is 1. An
interval below 1/4 means that steps follow max_i d_i (nothing, if alpha too is below 1/4), one above 3/4 that they
follow d, one above 1/4 that they grow with d, though maybe more slowly; any other interval does not tell. Where d is
the same in all cells (one function in several partitions) alpha is read in the same way. An interval wider than the
controls are apart does not tell either (this was added after the runs: seeds that miss make such intervals).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from synthetic.analysis.explain import Explained, explain
from synthetic.analysis.exponents import (
    FEWEST_CELLS,
    LEAST_D,
    Fit,
    fit_of,
    fits_of,
    in_forwards,
    laws_of,
    main_fit,
    ratio_of,
)
from synthetic.analysis.results import Series
from synthetic.design import CONTROLS, FIRST_ORDER

MARGIN, NEAR, FAR = 0.05, 0.25, 0.75
INTERACTING = ("coupled", "regression")  # kinds of problems whose layers interact, which the theorem excludes
_NO_SCATTER = 100  # bootstrap draws of exact numbers: all are equal, so that few serve
Follows = Literal["max_d", "d", "neither", "between", "not_max_d", "unknown"]


@dataclass(frozen=True)
class Control:
    """A control's exponents against theory.

    Attributes:
        kind: "positive" or "negative".
        measured: Fit on all cells but those left out.
        predicted: alpha and beta of the predicted counts, by name.
        largest_error: Largest |log(measured / predicted)| over the cells.
        within: Cells whose median lies where 95 % should, of those for which theory says where that is.
        left_out: Cells that determine no exponent; see the module.
        theory: Arguments used.
        passed: See the module.
    """

    kind: str
    measured: Fit
    predicted: dict[str, float]
    largest_error: float
    within: tuple[int, int]
    left_out: int
    theory: tuple[str, ...]
    passed: bool


@dataclass(frozen=True)
class Analysed:
    """A series with what follows from it.

    Attributes:
        series: What was measured.
        fits: By subset.
        laws: Competing laws by held-out error, the best first; empty with few cells.
        control: For the two controls.
        follows: What the steps follow.
        verdict: On "steps follow max_i d_i and not d", in the design's words.
        ratio: Steps against MeZO's: geometric mean over the verdict's cells with its interval; None for MeZO itself.
        forwards_ratio: The same of forwards; None where no count of forwards is fair.
        explained: What explains the ratio, for the methods of `synthetic.analysis.explain.CANDIDATES`.
    """

    series: Series
    fits: dict[str, Fit]
    laws: list[dict[str, Any]]
    control: Control | None
    follows: Follows
    verdict: str
    ratio: tuple[float, float, float] | None
    forwards_ratio: tuple[float, float, float] | None = None
    explained: Explained | None = None

    @property
    def main(self) -> Fit:
        """The fit on which the verdict rests."""
        return main_fit(self.fits)


@dataclass(frozen=True)
class _Instrument:
    """The controls of a family and start, and what theory gives them on the cells of the verdict, by exponent."""

    controls: tuple[Control, ...]
    references: dict[str, tuple[float, float]]

    @property
    def broken(self) -> bool:
        return {c.kind for c in self.controls if c.passed} != set(CONTROLS.values())


def analyse(all_series: Sequence[Series]) -> list[Analysed]:
    """Fits, controls and verdicts of every series, in the order given."""
    groups: dict[tuple[str, str], list[Series]] = {(s.family, s.start): [] for s in all_series}
    for s in all_series:
        groups[s.family, s.start].append(s)
    instruments: dict[tuple[str, ...], _Instrument] = {}
    fits: dict[tuple[str, ...], dict[str, Fit]] = {}
    out = []
    for s in all_series:
        members = groups[s.family, s.start]
        runs = tuple(c.key for m in members if m.method in CONTROLS for c in m.cells)
        if runs not in instruments:  # borrowed series share their runs, and so this
            instruments[runs] = _instrument(members)
        mine = tuple(c.key for c in s.cells)
        if mine not in fits:
            fits[mine] = fits_of(s)
        out.append(_analysed(s, members, fits[mine], instruments[runs]))
    return out


def _analysed(s: Series, members: Sequence[Series], fits: dict[str, Fit], instrument: _Instrument) -> Analysed:
    main = main_fit(fits)
    follows = follows_what(main, instrument.references)
    mezo = next((m for m in members if m.method == "mezo"), None)
    against = mezo if s.method != "mezo" and s.method not in FIRST_ORDER else None
    ratio = None if against is None else ratio_of(s, against)
    forwards = None if against is None or ratio is None else in_forwards(ratio, s, against)
    held_out = [] if len(s.cells) < FEWEST_CELLS or main.law is None else laws_of(s)
    control = next((c for c in instrument.controls if CONTROLS.get(s.method) == c.kind), None)
    return Analysed(
        series=s,
        fits=fits,
        laws=held_out,
        control=control,
        follows=follows,
        verdict=verdict_of(s, follows, instrument.broken),
        ratio=ratio,
        forwards_ratio=forwards,
        explained=explain(s, ratio, members),
    )


def _control(series: Series) -> Control | None:
    predicted = series.predicted()
    if predicted is None:
        return None
    sure = np.array([c.scatter is None or math.isfinite(c.scatter[1]) for c in series.cells])
    measured = fit_of("all", series.measured(), sure)
    theory = fit_of("all", predicted, sure, num_bootstrap=_NO_SCATTER)
    if measured.law is None or theory.law is None:
        return None
    passed = True
    for name, expected in theory.law.exponents.items():
        value, low, high = measured.exponent(name) or (math.nan,) * 3
        passed &= abs(value - expected) <= MARGIN + 0.5 * (high - low)
    medians = series.measured().medians
    with np.errstate(divide="ignore"):
        errors = np.abs(np.log(medians / predicted.medians))
    inside = [c.scatter[0] <= c.median <= c.scatter[1] for c in series.cells if c.scatter is not None]
    return Control(
        kind=CONTROLS[series.method],
        measured=measured,
        predicted=dict(theory.law.exponents),
        largest_error=float(errors.max()),
        within=(sum(inside), len(inside)),
        left_out=int((~sure).sum()),
        theory=tuple(dict.fromkeys(c.theory for c in series.cells)),
        passed=bool(passed),
    )


def _instrument(members: Sequence[Series]) -> _Instrument:
    controls = [c for s in members if s.method in CONTROLS and (c := _control(s)) is not None]
    ends: dict[str, Fit] = {}
    for s in members:
        predicted = s.predicted() if s.method in CONTROLS else None
        if predicted is not None:
            wanted = predicted.columns["d"] >= LEAST_D
            subset = predicted.where(wanted) if wanted.sum() >= FEWEST_CELLS else predicted
            ends[CONTROLS[s.method]] = fit_of("", subset, num_bootstrap=_NO_SCATTER)
    references = {}
    for name in ("max_d", "d"):
        positive, negative = (ends[kind].exponent(name) if kind in ends else None for kind in ("positive", "negative"))
        if positive is not None and negative is not None:
            references[name] = (positive[0], negative[0])
    return _Instrument(tuple(controls), references)


def follows_what(fit: Fit, references: dict[str, tuple[float, float]]) -> Follows:
    """What the steps follow, by the rule of the module."""
    alpha, beta = fit.exponent("max_d"), fit.exponent("d")
    if alpha is not None and fit.fixed_d and "max_d" in references:
        low, high = sorted(_on_scale(end, references["max_d"]) for end in alpha[1:])
        if high - low > 1:
            return "unknown"
        return "max_d" if high < NEAR else "not_max_d" if low > FAR else "unknown"
    if alpha is None or beta is None or "d" not in references:
        return "unknown"
    low, high = (_on_scale(end, references["d"]) for end in beta[1:])
    if high - low > 1:
        return "unknown"
    if high < NEAR:
        return "max_d" if alpha[1] > NEAR else "neither" if alpha[2] < NEAR else "unknown"
    if low > FAR:
        return "d"
    return "between" if low > NEAR else "unknown"


def _on_scale(value: float, references: tuple[float, float]) -> float:
    """0 at the positive control, 1 at the negative one."""
    positive, negative = references
    return (value - positive) / (negative - positive)


def verdict_of(series: Series, follows: Follows, broken: bool) -> str:
    """The design's word on "the steps of this method follow max_i d_i and not d"."""
    if broken:
        return "broken_instrument"
    if series.problem in INTERACTING and series.method.startswith("theorem"):
        return "outside_hypotheses"
    if follows == "unknown":
        return "not_resolved"
    return "consistent" if follows == "max_d" else "not_consistent"
