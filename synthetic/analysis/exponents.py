r"""How counts of steps go with max_i d_i and d, and against another method's. Never imports torch.

The law is log T = const + alpha log max_i d_i + beta log d. It is fitted to all cells and, as a guard against the
transient of momentum, to those with d >= 64, and as a guard against small widths, to those with w >= 16. Verdicts rest
on the cells with d >= 64 where there are at least eight, else on all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from helene.lab.scaling.cells import Cells, percentile_interval
from helene.lab.scaling.fits import CandidateLaw, PowerLawFit, compare_laws, fit_power_law
from synthetic.analysis.results import Series

FEWEST_CELLS, LEAST_D, LEAST_W = 8, 64, 16
LAWS = (
    CandidateLaw("max d_i and d", ("max_d", "d")),
    CandidateLaw("power of d", ("d",)),
    CandidateLaw("power of max d_i", ("max_d",)),
    CandidateLaw("power of tr H / mu", ("trace_over_mu",)),
    CandidateLaw("a + b d", ("d",), "linear"),
    CandidateLaw("a + b max d_i", ("max_d",), "linear"),
)


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
    return {"all": fit_of("all", cells), **{name: fit_of(name, cells, mask) for name, mask in subsets.items()}}


def fit_of(subset: str, cells: Cells, mask: np.ndarray | None = None, num_bootstrap: int = 2000) -> Fit:
    """The law on the cells of a mask, under the name of the subset."""
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
    picked = [s.measured().where(np.isin(np.arange(len(s.cells)), at)) for s, at in pairs]
    logs = [cells.bootstrap_log_medians(2000, np.random.default_rng(k)) for k, cells in enumerate(picked)]
    with np.errstate(invalid="ignore", divide="ignore"):
        draws = (logs[0] - logs[1]).mean(1)
        value = float(np.exp((np.log(picked[0].medians) - np.log(picked[1].medians)).mean()))
        low, high = percentile_interval(draws)
        return value, float(np.exp(low)), float(np.exp(high))


def in_forwards(ratio: tuple[float, float, float], series: Series, base: Series) -> tuple[float, float, float] | None:
    """The ratio of steps times that of the forwards a step takes."""
    counts = [(series.cells[i].forwards_per_step, base.cells[j].forwards_per_step) for i, j in _common(series, base)]
    if any(not ours or not theirs for ours, theirs in counts):
        return None
    factor = math.exp(sum(math.log((ours or 1.0) / (theirs or 1.0)) for ours, theirs in counts) / len(counts))
    return ratio[0] * factor, ratio[1] * factor, ratio[2] * factor


def laws_of(series: Series) -> list[dict[str, Any]]:
    """The competing laws by held-out error, the best first."""
    cells = series.measured()
    varied = [law for law in LAWS if all(len(set(cells.columns[p].tolist())) > 1 for p in law.predictors)]
    names = ("name", "error", "excess", "excess_se", "num_params")
    return [{name: getattr(held, name) for name in names} for held in compare_laws(cells, varied)]
