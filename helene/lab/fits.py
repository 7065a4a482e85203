"""Scaling laws from records: power laws and linear laws on medians, with intervals, censoring and held-out errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Cells:
    """The measured cells of one method, family and start.

    Attributes:
        columns: Positive numbers per cell, by name, shape (cells,): ``{"max_d": ..., "d": ..., "n": ..., "w": ...}``.
        samples: Counts per cell and seed, shape (cells, seeds); a miss is inf; nan fills up cells with fewer seeds.
        caps: Per cell, the count at which runs were stopped, shape (cells,); a cell whose median is inf is "at least
            this". None only where every median is finite.
    """

    columns: Mapping[str, Array]
    samples: Array
    caps: Array | None = None

    @classmethod
    def of(
        cls, columns: Mapping[str, ArrayLike], samples: Sequence[Sequence[float]], caps: ArrayLike | None = None
    ) -> Self:
        """Make cells from lists; the lists of seeds may differ in length."""
        raise NotImplementedError

    def where(self, mask: ArrayLike) -> Self:
        """The cells for which the mask, shape (cells,), is true: ``cells.where(cells.columns["w"] >= 16)``."""
        raise NotImplementedError

    @property
    def medians(self) -> Array:
        """Median over the seeds of each cell (in the middle of the two middle ones in log space), inf if censored."""
        raise NotImplementedError

    @property
    def censored(self) -> NDArray[np.bool_]:
        """Cells with an infinite median."""
        raise NotImplementedError


@dataclass(frozen=True)
class PowerLawFit:
    """T = exp(intercept) * prod_j x_j ** exponents[j], and how far to trust it.

    Attributes:
        exponents: By predictor.
        intervals: (low, high) of each exponent, from the bootstrap over seeds inside each cell.
        intercept: Natural logarithm of T at all predictors 1.
        level: Of the intervals.
        residual_sd: Standard deviation of log median T about the law, uncensored cells.
        largest_local_slope_difference: By axis: largest minus smallest local slope; 0 for an exact power law.
        num_cells: Cells in the fit, censored ones included.
        num_censored: Cells with an infinite median, entered as "at least the cap".
    """

    exponents: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    intercept: float
    level: float
    residual_sd: float
    largest_local_slope_difference: dict[str, float]
    num_cells: int
    num_censored: int

    def predict(self, columns: Mapping[str, ArrayLike]) -> Array:
        """T at new values of the predictors."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for ``summary.json``."""
        raise NotImplementedError


@dataclass(frozen=True)
class LinearFit:
    """T = a + b x, fitted to log medians; same attributes as :class:`PowerLawFit` where they apply."""

    predictor: str
    a: float
    b: float
    intervals: dict[str, tuple[float, float]]
    level: float
    residual_sd: float
    num_cells: int
    num_censored: int

    def predict(self, columns: Mapping[str, ArrayLike]) -> Array:
        """T at new values of the predictor."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for ``summary.json``."""
        raise NotImplementedError


def fit_power_law(
    cells: Cells,
    predictors: Sequence[str],
    *,
    axes: Sequence[str] = (),
    num_bootstrap: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> PowerLawFit:
    """Least squares of log median T on the logs of the predictors (Tobit where cells are censored).

    ``axes``: names of the columns that span the grid (``("n", "w")``), for the local slopes.
    """
    raise NotImplementedError


def fit_linear(
    cells: Cells, predictor: str, *, num_bootstrap: int = 2000, level: float = 0.95, seed: int = 0
) -> LinearFit:
    """T = a + b x by least squares on log medians (so that its errors compare with a power law's)."""
    raise NotImplementedError


@dataclass(frozen=True)
class Explanation:
    """One candidate law: ``Explanation("d linear", ("d",), "linear")``, ``Explanation("tr H/mu", ("trh_mu",))``."""

    name: str
    predictors: tuple[str, ...]
    form: str = "power"  # or "linear"


def compare_explanations(cells: Cells, explanations: Sequence[Explanation]) -> list[dict[str, Any]]:
    """Leave-one-cell-out errors in log space, best first: name, heldout_error, fit (as dict)."""
    raise NotImplementedError


def median_interval(
    samples: ArrayLike, *, num_bootstrap: int = 2000, level: float = 0.95, seed: int = 0
) -> tuple[float, float, float]:
    """Median of one cell's seeds (inf for misses) with its bootstrap interval: (median, low, high)."""
    raise NotImplementedError


def ratio_of_medians(
    numerator: ArrayLike, denominator: ArrayLike, *, num_bootstrap: int = 2000, level: float = 0.95, seed: int = 0
) -> tuple[float, float, float]:
    """Ratio of two medians with its bootstrap interval, seeds of the two drawn apart: (ratio, low, high)."""
    raise NotImplementedError
