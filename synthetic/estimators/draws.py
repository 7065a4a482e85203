"""Estimates of the curvature from minibatches drawn from a population's table; the cost does not depend on B."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.special import ndtr

from synthetic.estimators.populations import Array, Population

ESTIMATORS = ("returned", "squares", "sampled", "exact")
NEGLIGIBLE = 1e-9  # of the largest curvature: below it is rounding (keys' biases in attention have none at all)


def estimates(pop: Population, batch: int, count: int, rng: np.random.Generator) -> dict[str, Array]:
    r"""Independent estimates of the diagonal, each of shape (count, P).

    A minibatch enters through how often each pair of input and label occurs, a multinomial vector, which is the law of
    B samples drawn one by one.

    Returns:
        ``returned``, A-GNB as Algorithm 2 returns it: B ĝ⊙ĝ at the true labels. ``squares``, section 3.4's mean of
        per-sample squares at the true labels. ``sampled``, GNB: B ĝ⊙ĝ at labels drawn from the model. ``exact``, the
        minibatch's own Gauss-Newton diagonal, labels summed over.
    """
    inputs, classes, width = pop.gradients.shape
    flat = pop.gradients.reshape(-1, width)
    true, drawn = (rng.multinomial(batch, _shares(law), size=count) / batch for law in (pop.law, pop.model))
    given = pop.model / pop.model.sum(1, keepdims=True)
    own = np.einsum("nk,nkp->np", given, pop.gradients**2)
    return {
        "returned": batch * (true @ flat) ** 2,
        "squares": true @ flat**2,
        "sampled": batch * (drawn @ flat) ** 2,
        "exact": true.reshape(count, inputs, classes).sum(-1) @ own,
    }


def _shares(law: Array) -> Array:
    flat = law.reshape(-1)
    return flat / flat.sum()


def expected(pop: Population, batch: int) -> dict[str, Array]:
    """Exact means of `estimates`: E[B ĝ²] = Var g + B (E g)², and the three others."""
    drift = np.einsum("nk,nkp->p", pop.model, pop.gradients)  # zero up to rounding: Bartlett's first identity
    spread = pop.gauss_newton - drift**2
    shares = pop.law.sum(1, keepdims=True)
    given = pop.model / pop.model.sum(1, keepdims=True)
    return {
        "returned": pop.squares - pop.mean**2 + batch * pop.mean**2,
        "squares": pop.squares,
        "sampled": spread + batch * drift**2,
        "exact": np.einsum("nk,nkp->p", shares * given, pop.gradients**2),
    }


def summary(drawn: Array, truth: Array, mean: Array, groups: int) -> dict[str, Any]:
    """How estimates (count, P) stand to the true diagonal (P,), by group of replicates.

    Returns:
        Per group ``mean``, summed over coordinates, over the truth's sum; ``sd`` and ``error``, the root mean squares
        of the deviation from the own mean and from the truth, over the truth's norm. ``bias`` is exact, from the exact
        ``mean`` (P,). ``z`` says how many standard errors the drawn sum is from the exact one; ``within_2`` is the
        share of single estimates within a factor 2 of the truth.
    """
    norm, total = float(np.sqrt((truth**2).sum())), float(np.abs(truth).sum())
    parts = np.array_split(drawn, groups)
    sums = drawn.sum(1)
    gap, error = float(sums.mean() - mean.sum()), float(sums.std(ddof=1)) / math.sqrt(len(sums))
    scale = 1e-9 * float(np.abs(mean).sum())
    known = truth > NEGLIGIBLE * truth.max()
    ratio = drawn[:, known] / truth[known]
    return {
        "mean": [short(part.mean(0).sum() / total) for part in parts],
        "sd": [short(np.sqrt(part.var(0, ddof=1).sum()) / norm) for part in parts],
        "error": [short(np.sqrt(((part - truth) ** 2).mean(0).sum()) / norm) for part in parts],
        "bias": short(np.sqrt(((mean - truth) ** 2).sum()) / norm),
        "z": short(abs(gap) / (error + scale)),
        "within_2": short(((ratio >= 0.5) & (ratio <= 2)).mean()),
    }


def distance_from_law(pop: Population, returned: Array, batch: int) -> float:
    r"""sup |F − G|, F the law of B ĝ² drawn and G that of v χ'²₁(B μ²/v), the limit where ĝ is normal.

    Each value goes through its own G, v and μ being those of its coordinate, and all together are compared with the
    uniform law. At μ = 0, G is v χ²₁.
    """
    v = pop.squares - pop.mean**2
    usable = v > 1e-12 * v.max()
    shift = np.sqrt(batch / v[usable]) * np.abs(pop.mean[usable])
    root = np.sqrt(returned[:, usable] / v[usable])
    u = np.sort((ndtr(root - shift) - ndtr(-root - shift)).ravel())
    steps = np.arange(len(u) + 1) / len(u)
    return short(max(np.abs(u - steps[1:]).max(), np.abs(u - steps[:-1]).max()))


def short(value: Any) -> float:
    """Five significant digits: ten times the precision of any of these numbers."""
    return float(f"{float(value):.5g}")
