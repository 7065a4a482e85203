r"""What ``proofs/algorithm/groups.md`` predicts, and runs of its Theorem 4 with noisy losses of examples."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def kappa(shape: tuple[int, ...], rank: int = 1, signs: bool = False) -> float:
    """κ of Theorem 1 for a parameter of that shape."""
    if len(shape) < 2:
        return 0.0 if signs else 2.0
    p, q = shape
    return (2 * (rank - 1) if signs else 2 * (p + q + 1 + rank)) / rank


def second_moment(d: float, kappa: float, groups: int, batch: int, noise: float) -> float:
    """M of Theorem 4: E|ĝ|² in units of |ḡ|², every block with the same κ."""
    return (d + kappa) * (1.0 / groups + noise / batch) + 1.0 - 1.0 / groups


def predicted_steps(gap: float, moment: float) -> float:
    """Steps until the mean of |θ|² has fallen to ``gap`` of its start, at the rate 1 − 1/M."""
    return math.log(gap) / math.log1p(-1.0 / moment)


def steps_to(
    gap: float, side: int, groups: int, batch: int, noise: float, runs: int, *, signs: bool = False
) -> NDArray[np.int64]:
    """Steps until |θ|² has fallen to ``gap`` of its start, at the best step size, on one matrix of side x side.

    The loss of an example is ½|θ|² + a_iᵀθ with a_i normal, of variance ν|θ_t|²/d an element, so that tr Σ is ν|ḡ|² all
    along. Of a_i the slope along z sees a normal number of variance ν|θ_t|²|z|²/d, which is what is drawn.

    Returns:
        Of each run.
    """
    rng = np.random.default_rng(5)
    d, each = side * side, batch // groups
    theta = np.full((runs, side, side), 1.0 / side)
    lr = 1.0 / second_moment(d, kappa((side, side), 1, signs), groups, batch, noise)
    steps, squares = np.zeros(runs, np.int64), np.ones(runs)
    while (squares > gap).any():
        u, v = rng.standard_normal((2, runs, groups, side))
        if signs:
            u, v = np.sign(u), np.sign(v)
        length = np.sqrt(np.sum(u**2, axis=2) * np.sum(v**2, axis=2))
        spread = np.sqrt(noise * squares / d / each)[:, None] * length
        slopes = np.sum((u @ theta) * v, axis=2) + spread * rng.standard_normal((runs, groups))
        theta -= (lr / groups) * (u * slopes[:, :, None]).transpose(0, 2, 1) @ v
        steps += squares > gap
        squares = np.where(squares > gap, np.sum(theta**2, axis=(1, 2)), squares)
    return steps
