r"""Exponents, controls and verdicts, by rules that were fixed before the runs. Never imports torch.

The law is log T = const + alpha log max_i d_i + beta log d. It is fitted to all cells and, as a guard against the
transient of momentum, to those with d >= 64, and as a guard against small widths, to those with w >= 16. Verdicts rest
on the cells with d >= 64 where there are at least eight, else on all.

*Controls.* Theory predicts alpha and beta of both controls on the very cells that were measured. A control passes if
both differ from the prediction by at most 0.05 plus half the 95 % interval; if one of them fails, the instrument is
broken and nothing else is concluded from that family and start. Cells whose median by theory itself may be a
miss or far beyond the best (their range of 95 % has no end) determine no exponent: they are left out of both
sides, whatever was measured there (this rule alone was added after the runs).

*Verdicts.* beta is read on a scale on which the positive control's predicted beta is 0 and the negative one's is 1. An
interval below 1/4 means that steps follow max_i d_i (nothing, if alpha too is below 1/4), one above 3/4 that they
follow d, one above 1/4 that they grow with d, though maybe more slowly; any other interval does not tell. Where d is
the same in all cells (one function in several partitions) alpha is read in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from helene.lab.cells import percentile_interval
from helene.lab.fits import Cells, Explanation, PowerLawFit, compare_explanations, fit_power_law
from synthetic.design import CONTROLS, FIRST_ORDER
from synthetic.results import Series

MARGIN, NEAR, FAR = 0.05, 0.25, 0.75
INTERACTING = ("coupled", "regression")  # problems whose layers do; the theorem supposes that they do not
_NO_SCATTER = 100  # draws of a bootstrap of exact numbers, all equal
FEWEST_CELLS, LEAST_D, LEAST_W = 8, 64, 16
EXPLANATIONS = (
    Explanation("max d_i and d", ("max_d", "d")),
    Explanation("power of d", ("d",)),
    Explanation("power of max d_i", ("max_d",)),
    Explanation("power of tr H / mu", ("trace_over_mu",)),
    Explanation("a + b d", ("d",), "linear"),
    Explanation("a + b max d_i", ("max_d",), "linear"),
)
Follows = Literal["max_d", "d", "neither", "between", "not_max_d", "unknown"]


@dataclass(frozen=True)
class Fit:
    """Exponents on a subset of a series' cells.

    Attributes:
        subset: "all", "d >= 64" or "w >= 16".
        law: The fit; None where the cells do not determine it.
        reason: Why not.
        fixed_d: Whether d is the same in all cells, so that beta is not defined and alpha is the slope at fixed d.
    """

    subset: str
    law: PowerLawFit | None
    reason: str = ""
    fixed_d: bool = False

    def exponent(self, name: str) -> tuple[float, float, float] | None:
        """(value, low, high) of "max_d" (alpha) or "d" (beta)."""
        if self.law is None or name not in self.law.exponents:
            return None
        return (self.law.exponents[name], *self.law.intervals[name])


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
        explanations: Competing laws by held-out error, the best first; empty with few cells.
        control: For the two controls.
        follows: What the steps follow.
        verdict: On "steps follow max_i d_i and not d", in the design's words.
        ratio: Steps against MeZO's: geometric mean over the verdict's cells with its interval; None for MeZO itself.
        forwards_ratio: The same of forwards; None where no count of forwards is fair.
    """

    series: Series
    fits: dict[str, Fit]
    explanations: list[dict[str, Any]]
    control: Control | None
    follows: Follows
    verdict: str
    ratio: tuple[float, float, float] | None
    forwards_ratio: tuple[float, float, float] | None = None

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
        if runs not in instruments:  # borrowed series are the same runs
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
    forwards = None if against is None or ratio is None else _in_forwards(ratio, s, against)
    held_out = [] if len(s.cells) < FEWEST_CELLS or main.law is None else _explain(s)
    control = next((c for c in instrument.controls if CONTROLS.get(s.method) == c.kind), None)
    return Analysed(s, fits, held_out, control, follows, verdict_of(s, follows, instrument.broken), ratio, forwards)


def main_fit(fits: dict[str, Fit]) -> Fit:
    """The fit on which the verdict rests."""
    guarded = fits["d >= 64"]
    return guarded if guarded.law is not None and guarded.law.num_cells >= FEWEST_CELLS else fits["all"]


def fits_of(series: Series) -> dict[str, Fit]:
    """The law on all cells and on the two guarded subsets."""
    if not series.cells:
        empty = Fit("all", None, "no cell was measured")
        return {name: empty for name in ("all", "d >= 64", "w >= 16")}
    cells = series.measured()
    columns = cells.columns
    subsets = {"d >= 64": columns["d"] >= LEAST_D, "w >= 16": columns["w"] >= LEAST_W}
    return {"all": _fit("all", cells), **{name: _fit(name, cells, mask) for name, mask in subsets.items()}}


def _fit(subset: str, cells: Cells, mask: np.ndarray | None = None, num_bootstrap: int = 2000) -> Fit:
    if mask is not None and not mask.any():
        return Fit(subset, None, "no cell is that large")
    cells = cells if mask is None else cells.where(mask)
    if len(cells) < 3:
        return Fit(subset, None, f"{len(cells)} cells do not determine two exponents")
    fixed = len(set(cells.columns["d"].tolist())) == 1
    try:
        law = fit_power_law(cells, ["max_d"] if fixed else ["max_d", "d"], axes=["n", "w"], num_bootstrap=num_bootstrap)
    except ValueError as err:
        return Fit(subset, None, str(err))
    return Fit(subset, law, fixed_d=fixed)


def _control(series: Series) -> Control | None:
    predicted = series.predicted()
    if predicted is None:
        return None
    sure = np.array([c.scatter is None or math.isfinite(c.scatter[1]) for c in series.cells])
    measured = _fit("all", series.measured(), sure)
    theory = _fit("all", predicted, sure, num_bootstrap=_NO_SCATTER)
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
            ends[CONTROLS[s.method]] = _fit("", subset, num_bootstrap=_NO_SCATTER)
    references = {}
    for name in ("max_d", "d"):
        found = [fit.exponent(name) for kind in ("positive", "negative") if (fit := ends.get(kind)) is not None]
        if len(found) == 2 and found[0] is not None and found[1] is not None:
            references[name] = (found[0][0], found[1][0])
    return _Instrument(tuple(controls), references)


def follows_what(fit: Fit, references: dict[str, tuple[float, float]]) -> Follows:
    """What the steps follow, by the rule of the module."""
    alpha, beta = fit.exponent("max_d"), fit.exponent("d")
    if alpha is not None and fit.fixed_d and "max_d" in references:
        low, high = sorted(_on_scale(end, references["max_d"]) for end in alpha[1:])
        return "max_d" if high < NEAR else "not_max_d" if low > FAR else "unknown"
    if alpha is None or beta is None or "d" not in references:
        return "unknown"
    low, high = (_on_scale(end, references["d"]) for end in beta[1:])
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
    return "consistent" if follows in ("max_d", "neither") else "not_consistent"


def _common(series: Series, base: Series) -> list[tuple[int, int]]:
    """Positions in both of the cells that both have, those with d >= 64 where there are enough of them."""
    ours, theirs = ({(c.n, c.max_d, c.d): i for i, c in enumerate(s.cells)} for s in (series, base))
    common = [cell for cell in ours if cell in theirs]
    large = [cell for cell in common if cell[2] >= LEAST_D]
    return [(ours[cell], theirs[cell]) for cell in (large if len(large) >= FEWEST_CELLS else common)]


def ratio_of(series: Series, base: Series) -> tuple[float, float, float] | None:
    """Geometric mean over common cells of the ratio of median steps, with its bootstrap interval."""
    common = _common(series, base)
    if not common:
        return None
    pairs = zip((series, base), zip(*common, strict=True), strict=True)
    picked = [s.measured().where(_mask(len(s.cells), list(at))) for s, at in pairs]
    logs = [cells.bootstrap_log_medians(2000, np.random.default_rng(k)) for k, cells in enumerate(picked)]
    with np.errstate(invalid="ignore", divide="ignore"):
        draws = (logs[0] - logs[1]).mean(1)
        value = float(np.exp((np.log(picked[0].medians) - np.log(picked[1].medians)).mean()))
        low, high = percentile_interval(draws, 0.95)
        return value, float(np.exp(low)), float(np.exp(high))


def _in_forwards(ratio: tuple[float, float, float], series: Series, base: Series) -> tuple[float, float, float] | None:
    """The ratio of steps times that of the forwards a step takes."""
    counts = [(series.cells[i].forwards_per_step, base.cells[j].forwards_per_step) for i, j in _common(series, base)]
    if any(not ours or not theirs for ours, theirs in counts):
        return None
    factor = math.exp(sum(math.log((ours or 1.0) / (theirs or 1.0)) for ours, theirs in counts) / len(counts))
    return ratio[0] * factor, ratio[1] * factor, ratio[2] * factor


def _mask(size: int, indices: list[int]) -> np.ndarray:
    mask = np.zeros(size, bool)
    mask[indices] = True
    return mask


def _explain(series: Series) -> list[dict[str, Any]]:
    cells = series.measured()
    varied = [e for e in EXPLANATIONS if all(len(set(cells.columns[p].tolist())) > 1 for p in e.predictors)]
    kept = ("name", "error", "excess", "excess_se", "num_params")
    return [{name: getattr(held, name) for name in kept} for held in compare_explanations(cells, varied)]
