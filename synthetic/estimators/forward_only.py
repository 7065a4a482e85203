"""h from SPSA gradients: what of single coordinates is left, against the dimension."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from synthetic.estimators.draws import Array, short

INPUTS = 256


def measure(config: Mapping[str, Any]) -> dict[str, Any]:
    """A logistic model at its optimum, curvatures over three decades; B c²z⊙z and B ĝ⊙ĝ of the same minibatches.

    Returns:
        Per group of estimates: ``snr``, mean over standard deviation of the contrast Σ w_j h_j of one estimate, w the
        true diagonal less its mean (of all contrasts the one that follows the truth); ``rank`` and ``rank_exact``,
        Spearman's correlation of the truth with the exponential average of ``averaged`` estimates, from SPSA and from
        the exact minibatch gradient.
    """
    d, batch = config["d"], config["batch"]
    rng = np.random.default_rng(config["seed"] + d)
    x = rng.standard_normal((INPUTS, d)) * np.geomspace(1.0, 10.0 ** (-config["decades"] / 2), d)
    logit = x @ rng.standard_normal(d)
    p = 1 / (1 + np.exp(-1.5 * logit / logit.std()))
    truth = (p * (1 - p)) @ x**2 / INPUTS
    contrast = truth - truth.mean()
    weights = config["beta2"] ** np.arange(config["averaged"])[::-1]
    out: dict[str, list[float]] = {"snr": [], "rank": [], "rank_exact": []}
    for _ in range(config["groups"]):
        values, average, exact = [], np.zeros(d), np.zeros(d)
        for start in range(0, config["estimates"], config["averaged"]):
            g = _minibatch_gradients(x, p, batch, config["averaged"], rng)
            z = rng.standard_normal(g.shape)
            slope = np.einsum("td,td->t", g, z)
            h = batch * slope[:, None] ** 2 * z**2
            values.append(h @ contrast)
            if start == 0:
                average, exact = weights @ h, weights @ (batch * g**2)
        contrasts = np.concatenate(values)
        out["snr"].append(short(contrasts.mean() / contrasts.std(ddof=1)))
        out["rank"].append(short(spearman(average, truth)))
        out["rank_exact"].append(short(spearman(exact, truth)))
    return {"status": "reached", **out}


def _minibatch_gradients(x: Array, p: Array, batch: int, count: int, rng: np.random.Generator) -> Array:
    rows = rng.integers(len(x), size=(count, batch))
    labels = rng.random((count, batch)) < p[rows]
    residual = np.zeros((count, len(x)))
    np.add.at(residual, (np.arange(count)[:, None], rows), p[rows] - labels)
    return residual @ x / batch


def spearman(a: Array, b: Array) -> float:
    """Rank correlation of two vectors without ties."""
    return float(np.corrcoef(a.argsort().argsort(), b.argsort().argsort())[0, 1])
