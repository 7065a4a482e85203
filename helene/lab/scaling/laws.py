"""Fitting laws to many sets of log medians at once, some of them censored: Tobit maximum likelihood.

A censored cell is known to lie at or above its cap. With log medians y_i = mu_i(params) + sigma e_i, e_i standard
normal, its likelihood is P(y_i >= cap_i) = Q(z_i), z_i = (cap_i - mu_i) / sigma. With the hazard l = density / Q at z:

* EM puts the mean above the cap, mu + sigma l, in its place, fits by least squares, and repeats: always uphill, slowly.
* A Newton step for mu at given sigma is least squares too, with mu + sigma / (l - z) in its place and weight l (l - z).

Newton goes first; rows that it does not settle are left to EM. sigma follows by EM. Without censored cells both are
plain least squares.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from scipy.special import erfcx

from helene.lab.scaling.cells import Array, Mask

_NEWTON_ITERATIONS = 60
_MAX_ITERATIONS = 2000
_TOLERANCE = 1e-7  # in log T: far below any interval
_SIGMA_FLOOR = 1e-9  # an exact law has sigma 0; the truncated mean divides by it


class Law(Protocol):
    """A law mu(params) for log T on fixed cells; every method works on rows (sets of medians) at once."""

    num_params: int

    def start(self, y: Array, weights: Array) -> Array:
        """Parameters to begin with, shape (rows, num_params), for y and weights of shape (rows, cells)."""

    def improve(self, params: Array, y: Array, weights: Array) -> Array:
        """Parameters with no larger weighted sum of squares."""

    def curve(self, params: Array) -> Array:
        """mu, shape (rows, cells)."""

    def determined(self, seen: Mask) -> Mask:
        """Which rows, of the cells seen (rows, cells), determine all parameters; shape (rows,)."""


class PowerLaw:
    """mu = params . (1, log x_1, log x_2, ...).

    Args:
        logs: Logs of the predictors, shape (cells, predictors).
    """

    def __init__(self, logs: Array) -> None:
        self.design = np.column_stack([np.ones(len(logs)), logs])
        self.num_params = self.design.shape[1]
        self._centre = logs.mean(axis=0)  # centred logs keep the normal equations well conditioned
        self._centred = np.column_stack([np.ones(len(logs)), logs - self._centre])
        self._products = (self._centred[:, :, None] * self._centred[:, None, :]).reshape(len(logs), -1)

    def start(self, y: Array, weights: Array) -> Array:
        """See :class:`Law`."""
        return self.improve(np.zeros((len(y), self.num_params)), y, weights)

    def improve(self, params: Array, y: Array, weights: Array) -> Array:
        """The weighted least squares solution itself."""
        gram = (weights @ self._products).reshape(len(y), self.num_params, self.num_params)
        solution = np.linalg.solve(gram, ((weights * y) @ self._centred)[..., None])[..., 0]
        solution[:, 0] -= solution[:, 1:] @ self._centre
        return solution

    def curve(self, params: Array) -> Array:
        """See :class:`Law`."""
        return params @ self.design.T

    def determined(self, seen: Mask) -> Mask:
        """See :class:`Law`."""
        patterns, back = np.unique(seen, axis=0, return_inverse=True)
        full = [np.linalg.matrix_rank(self.design[cells], tol=1e-8) == self.num_params for cells in patterns]
        return np.array(full)[back.reshape(-1)]


class LinearLaw:
    """mu = log(a + b x), by Gauss-Newton in the angle phi and the log scale u: a = e^u cos(phi), b = e^u sin(phi)/x0.

    Either of a and b may be negative as long as a + b x stays positive on the cells.

    Args:
        x: The predictor, positive, shape (cells,).
    """

    num_params = 2

    def __init__(self, x: Array) -> None:
        self.x0 = float(np.exp(np.log(x).mean()))
        self.t = x / self.x0
        margin = 1e-6
        self.bounds = (-np.arctan(1 / self.t.max()) + margin, np.pi / 2 + np.arctan(self.t.min()) - margin)

    def _log_shape(self, phi: Array) -> Array:
        return np.log(np.cos(phi)[:, None] + np.sin(phi)[:, None] * self.t)

    def start(self, y: Array, weights: Array) -> Array:
        """The best of a grid of angles."""
        grid = np.linspace(*self.bounds, 101)
        shapes = self._log_shape(grid)
        total = weights.sum(axis=1, keepdims=True)
        mean_shape = weights @ shapes.T / total
        mean_y = (weights * y).sum(axis=1, keepdims=True) / total
        loss = weights @ (shapes**2).T - 2 * (weights * (y - mean_y)) @ shapes.T - total * mean_shape**2
        best = loss.argmin(axis=1)
        return np.column_stack([(mean_y - np.take_along_axis(mean_shape, best[:, None], axis=1))[:, 0], grid[best]])

    def improve(self, params: Array, y: Array, weights: Array) -> Array:
        """One Gauss-Newton step, halved where it would not help."""
        phi = params[:, 1]
        shape = self._log_shape(phi)
        slope = (np.cos(phi)[:, None] * self.t - np.sin(phi)[:, None]) / np.exp(shape)
        total = weights.sum(axis=1)

        def centred(values: Array) -> Array:
            return values - ((weights * values).sum(axis=1) / total)[:, None]

        def loss(angle: Array) -> Array:
            return (weights * centred(y - self._log_shape(angle)) ** 2).sum(axis=1)

        rise = centred(slope)
        step = (weights * rise * centred(y - shape)).sum(axis=1) / (weights * rise**2).sum(axis=1)
        before, angle = loss(phi), phi
        for _ in range(30):
            angle = np.clip(phi + step, *self.bounds)
            worse = loss(angle) > before
            if not worse.any():
                break
            step = np.where(worse, step / 2, step)
        angle = np.where(loss(angle) > before, phi, angle)
        scale = (weights * (y - self._log_shape(angle))).sum(axis=1) / total
        return np.column_stack([scale, angle])

    def curve(self, params: Array) -> Array:
        """See :class:`Law`."""
        return params[:, :1] + self._log_shape(params[:, 1])

    def determined(self, seen: Mask) -> Mask:
        """See :class:`Law`."""
        low = np.where(seen, self.t, np.inf).min(axis=1)
        high = np.where(seen, self.t, -np.inf).max(axis=1)
        return high > low * (1 + 1e-8)


def fit_rows(law: Law, y: Array, censored: Mask, weights: Array | None = None) -> tuple[Array, Array]:
    """Maximum likelihood of each row.

    Args:
        law: The law on the cells.
        y: Log medians, the log of the cap where censored, shape (rows, cells).
        censored: Shape (rows, cells).
        weights: 0 leaves a cell out, 1 takes it; shape (rows, cells). Default: all in.

    Returns:
        Parameters, shape (rows, num_params), nan where the uncensored cells do not determine them; and sigma, its
        maximum likelihood estimate (divisor: the cells), shape (rows,).
    """
    weights = np.ones_like(y) if weights is None else weights
    params, sigma = np.full((len(y), law.num_params), np.nan), np.full(len(y), np.nan)
    active = np.flatnonzero(law.determined(~censored & (weights > 0)))
    if not len(active):
        return params, sigma
    params[active] = law.start(y[active], weights[active])
    sigma[active] = np.maximum(_spread(y[active] - law.curve(params[active]), weights[active]), _SIGMA_FLOOR)
    for iteration in range(_MAX_ITERATIONS):
        mu = law.curve(params[active])
        newton = iteration < _NEWTON_ITERATIONS
        filled, trust, extra = _filled(y[active], censored[active], mu, sigma[active, None], newton)
        better = law.improve(params[active], filled, weights[active] * trust)
        moved = np.abs(law.curve(better) - mu).max(axis=1)
        residual = np.where(censored[active], 0.0, y[active] - law.curve(better))
        spread = np.maximum(_spread(residual, weights[active], extra), _SIGMA_FLOOR)
        moved = np.maximum(moved, np.where(censored[active].any(axis=1), np.abs(spread - sigma[active]), 0.0))
        params[active], sigma[active] = better, spread
        active = active[~(moved <= _TOLERANCE)]
        if not len(active):
            break
        if iteration + 1 == _NEWTON_ITERATIONS:
            params[active] = law.start(y[active], weights[active])
            sigma[active] = np.maximum(_spread(y[active] - law.curve(params[active]), weights[active]), _SIGMA_FLOOR)
    return params, sigma


def _filled(y: Array, censored: Mask, mu: Array, sigma: Array, newton: bool) -> tuple[Array, Array, Array]:
    """What stands in the censored places, with what weight, and its share of the sum of squares, E[(value - mu)^2]."""
    z = np.where(censored, (y - mu) / sigma, 0.0)
    hazard = np.sqrt(2 / np.pi) / erfcx(z / np.sqrt(2))  # accurate in both tails
    square = np.where(censored, sigma**2 * np.maximum(1 + z * hazard, 0.0), 0.0)
    if not newton:
        return np.where(censored, mu + sigma * hazard, y), np.ones_like(y), square
    gap = np.where(z > 1e3, 1 / np.maximum(z, 1.0), hazard - z)  # far out the difference cancels
    return np.where(censored, mu + sigma / gap, y), np.where(censored, hazard * gap, 1.0), square


def _spread(residual: Array, weights: Array, extra: Array | float = 0.0) -> Array:
    return np.sqrt((weights * (residual**2 + extra)).sum(axis=1) / weights.sum(axis=1))
