"""Scaling laws from measured cells: power laws and linear laws, with intervals, censoring and held-out errors.

One rule for censored cells everywhere: a cell whose median is infinite is known to lie at or above its cap, and enters
the fit as such (Tobit, :mod:`helene.lab.scaling.laws`). It is never dropped, and never taken for its cap.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from helene.lab.scaling.cells import Array, Cells, percentile_interval
from helene.lab.scaling.laws import Law, LinearLaw, PowerLaw, fit_rows


@dataclass(frozen=True)
class PowerLawFit:
    """T = exp(intercept) * prod_j x_j ** exponents[j], and how far to trust it.

    The intervals come from the bootstrap over seeds inside each cell. They know nothing of lack of fit: read
    ``residual_sd`` and ``largest_local_slope_difference`` beside them.

    Attributes:
        exponents: By predictor.
        intervals: (low, high) of each exponent, 95 %.
        intercept: Natural logarithm of T at all predictors 1.
        residual_sd: Standard deviation of log median T about the law, over the uncensored cells with as many degrees
            of freedom as cells less parameters; nan when none are left.
        largest_local_slope_difference: By axis: largest minus smallest local slope; 0 for an exact power law.
        num_cells: Cells in the fit, censored ones included.
        num_censored: Cells with an infinite median, entered as "at least the cap".
        draws: Bootstrap draws of (intercept, exponents in order), shape (num_bootstrap, 1 + predictors).
    """

    exponents: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    intercept: float
    residual_sd: float
    largest_local_slope_difference: dict[str, float]
    num_cells: int
    num_censored: int
    draws: Array = field(repr=False, compare=False)

    def combination(self, weights: Mapping[str, float]) -> tuple[float, float, float]:
        """A weighted sum of exponents with its interval: (value, low, high).

        ``{"max_d": 1, "d": 1}`` is the slope in the width of equal layers at a fixed number of them.
        """
        vector = np.array([weights.get(name, 0.0) for name in self.exponents])
        value = float(vector @ list(self.exponents.values()))
        return (value, *percentile_interval(self.draws[:, 1:] @ vector))

    def predict(self, columns: Mapping[str, ArrayLike]) -> Array:
        """T at new values of the predictors."""
        return np.exp(self.intercept + self._logs(columns) @ list(self.exponents.values()))

    def band(self, columns: Mapping[str, ArrayLike]) -> tuple[Array, Array]:
        """Pointwise interval (low, high) of the fitted T at new values of the predictors."""
        curves = self.draws[:, :1] + self.draws[:, 1:] @ self._logs(columns).T
        ends = [percentile_interval(point) for point in curves.T]
        return np.exp([low for low, _ in ends]), np.exp([high for _, high in ends])

    def _logs(self, columns: Mapping[str, ArrayLike]) -> Array:
        return np.column_stack([np.log(np.atleast_1d(np.asarray(columns[name], float))) for name in self.exponents])


def fit_power_law(
    cells: Cells,
    predictors: Sequence[str],
    *,
    axes: Sequence[str] = (),
    num_bootstrap: int = 2000,
    seed: int = 0,
) -> PowerLawFit:
    """Least squares of log median T on the logs of the predictors; Tobit maximum likelihood where cells are censored.

    Args:
        cells: What was measured.
        predictors: Names of columns: ``["max_d", "d"]``.
        axes: Columns that span the grid, ``["n", "w"]``: local slopes are taken along each with the others held.
        num_bootstrap: Draws of the bootstrap, at least 100.
        seed: Of the bootstrap.

    Raises:
        ValueError: If a column is missing, or the cells that reached the target do not determine the exponents (one
            width only; too few cells; predictors that move together).
    """
    law = PowerLaw(_logs(cells, predictors))
    params, draws, residual_sd = _fit(law, cells, predictors, num_bootstrap, seed)
    return PowerLawFit(
        exponents=dict(zip(predictors, params[1:].tolist(), strict=True)),
        intervals={name: percentile_interval(draws[:, 1 + j]) for j, name in enumerate(predictors)},
        intercept=float(params[0]),
        residual_sd=residual_sd,
        largest_local_slope_difference={axis: _spread_of_slopes(cells, axis, axes) for axis in axes},
        num_cells=len(cells),
        num_censored=int(cells.censored.sum()),
        draws=draws,
    )


def _logs(cells: Cells, predictors: Sequence[str]) -> Array:
    missing = [name for name in predictors if name not in cells.columns]
    if missing or not predictors:
        raise ValueError(f"predictors must be among the columns {sorted(cells.columns)}, got {list(predictors)}")
    return np.log(np.column_stack([cells.columns[name] for name in predictors]))


def _fit(
    law: Law, cells: Cells, predictors: Sequence[str], num_bootstrap: int, seed: int
) -> tuple[Array, Array, float]:
    if num_bootstrap < 100:
        raise ValueError(f"num_bootstrap must be at least 100, got {num_bootstrap!r}; 2000 is usual")
    y, censored = cells.log_observed(), cells.censored
    if not law.determined(~censored[None])[0]:
        raise ValueError(
            f"{(~censored).sum()} of {len(cells)} cells reached the target and do not determine the exponents of "
            f"{', '.join(predictors)}; vary each of them apart from the others (a grid over n and w)"
        )
    params = fit_rows(law, y[None], censored[None])[0]
    resampled = cells.bootstrap_log_medians(num_bootstrap, np.random.default_rng(seed))
    missed = np.isinf(resampled)
    if missed.any():
        if cells.caps is None:
            raise ValueError("some seeds missed the target, so caps must say how long they ran")
        resampled = np.where(missed, np.log(cells.caps), resampled)
    draws = fit_rows(law, resampled, missed)[0]
    residual = (y - law.curve(params)[0])[~censored]
    freedom = len(residual) - law.num_params
    return params[0], draws, float(np.sqrt(residual @ residual / freedom)) if freedom > 0 else float("nan")


def local_slopes(cells: Cells, axis: str, axes: Sequence[str]) -> list[tuple[float, float]]:
    """Slopes of log median T between neighbours along one axis, the other axes held: (geometric middle, slope).

    Pairs with a censored cell are left out.
    """
    x, y = cells.columns[axis], np.log(cells.medians)
    held = [tuple(cells.columns[name][i] for name in axes if name != axis) for i in range(len(cells))]
    out = []
    for group in sorted(set(held)):
        members = sorted((i for i in range(len(cells)) if held[i] == group), key=lambda i: x[i])
        for i, j in itertools.pairwise(members):
            if np.isfinite(y[[i, j]]).all() and x[j] > x[i]:
                out.append((float(np.sqrt(x[i] * x[j])), float((y[j] - y[i]) / np.log(x[j] / x[i]))))
    return out


def _spread_of_slopes(cells: Cells, axis: str, axes: Sequence[str]) -> float:
    slopes = [slope for _, slope in local_slopes(cells, axis, axes)]
    return max(slopes) - min(slopes) if len(slopes) > 1 else float("nan")


@dataclass(frozen=True)
class CandidateLaw:
    """One candidate law: a power law in some predictors, or T = a + b x in one.

    ``CandidateLaw("linear in d", ("d",), "linear")``, ``CandidateLaw("effective dimension", ("trace_over_mu",))``.
    """

    name: str
    predictors: tuple[str, ...]
    form: Literal["power", "linear"] = "power"

    def __post_init__(self) -> None:
        if self.form not in ("power", "linear") or (self.form == "linear" and len(self.predictors) != 1):
            raise ValueError(
                f"form must be 'power', or 'linear' with one predictor, got {self.form!r} of {self.predictors}"
            )


@dataclass(frozen=True)
class HeldOut:
    """How well an explanation predicts cells that it was not fitted to.

    Attributes:
        name: Of the explanation.
        error: Root mean square of ``errors``: 0.1 is about 10 % of T.
        errors: Per cell, log median T minus the prediction from all other cells; for a censored cell, how far the
            prediction falls short of the log of the cap, 0 if it does not; inf where the others determine no law.
        excess: Mean over cells of this squared error minus the best explanation's, with its standard error over
            cells: an excess within two of them does not tell the two apart.
        excess_se: That standard error.
        num_params: Of the law.
    """

    name: str
    error: float
    errors: tuple[float, ...]
    excess: float
    excess_se: float
    num_params: int


def compare_laws(cells: Cells, candidates: Sequence[CandidateLaw]) -> list[HeldOut]:
    """Leave-one-cell-out errors in log space of competing laws, the best first.

    Raises:
        ValueError: If a column is missing.
    """
    errors = {law.name: _held_out_errors(cells, law) for law in candidates}
    best = min(errors.values(), key=lambda row: float(np.mean(row**2)))
    out = []
    for law in candidates:
        with np.errstate(invalid="ignore"):
            gap = errors[law.name] ** 2 - best**2
            se = float(gap.std(ddof=1) / np.sqrt(len(gap))) if len(gap) > 1 else float("nan")
        error = float(np.sqrt(np.mean(errors[law.name] ** 2)))
        num_params = 2 if law.form == "linear" else 1 + len(law.predictors)
        out.append(
            HeldOut(
                law.name,
                error=error,
                errors=tuple(errors[law.name].tolist()),
                excess=float(gap.mean()),
                excess_se=se,
                num_params=num_params,
            )
        )
    return sorted(out, key=lambda held: held.error)


def _held_out_errors(cells: Cells, candidate: CandidateLaw) -> Array:
    logs = _logs(cells, candidate.predictors)
    law = LinearLaw(np.exp(logs[:, 0])) if candidate.form == "linear" else PowerLaw(logs)
    count = len(cells)
    y, censored = np.tile(cells.log_observed(), (count, 1)), np.tile(cells.censored, (count, 1))
    params, _ = fit_rows(law, y, censored, 1.0 - np.eye(count))
    miss = np.diag(y) - np.diag(law.curve(params))
    miss = np.where(np.isnan(miss), np.inf, miss)
    return np.where(cells.censored, np.maximum(miss, 0.0), miss)
