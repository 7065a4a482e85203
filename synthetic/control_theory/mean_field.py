r"""The mean field of SPSA on separable losses: how the density of a coordinate moves when there are many.

Among many coordinates each moves by its own slope and by noise that depends on the others only through
G = Σ E slope², summed over the coordinates that share a direction: in step size η,

    ∂p/∂t = ∂(η phi'(u) p + ½ η² (G + 2 E phi'(u)²) ∂p/∂u) / ∂u,

the 2 E phi'² being the coordinate's own share, which matters at small d. Crank-Nicolson in time with steps that grow,
in each block its own; G extrapolated to the middle of a step; in u central differences, but upwind ones where the
density has shrunk below a cell. Never imports torch: its own profiles, in numpy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_banded

Array = NDArray[np.float64]
_CELLS_TO_START, _MOST_CELLS = 40, 1600
_FIRST_STEP, _GROWTH = 0.04, 0.02  # in units of 1 / (η λ_max), and of the time passed


@dataclass(frozen=True)
class Profile:
    """A one-dimensional loss: its value and slope."""

    value: Callable[[Array], Array]
    slope: Callable[[Array], Array]


_Q, _A = 0.2, math.log(0.2 / 0.8)
PROFILES = {
    "quadratic": Profile(lambda u: 0.5 * u * u, lambda u: u),
    "log_cosh": Profile(lambda u: np.abs(u) + np.log1p(np.exp(-2.0 * np.abs(u))) - math.log(2.0), np.tanh),
    "softplus": Profile(
        lambda u: (np.logaddexp(0.0, u + _A) + math.log1p(-_Q) - _Q * u) / (_Q * (1.0 - _Q)),
        lambda u: (1.0 / (1.0 + np.exp(-(u + _A))) - _Q) / (_Q * (1.0 - _Q)),
    ),
    "quartic": Profile(lambda u: 0.5 * u * u + 0.25 * u**4, lambda u: u + u**3),
}


@dataclass(frozen=True)
class Group:
    """Coordinates that are alike.

    Attributes:
        block: Which direction they share: one number for all groups, or one per kind of layer.
        count: How many of them are in one block.
        copies: How many such blocks there are.
        curvature: Eigenvalue at the minimizer.
        scale: Length over which the curvature changes.
        distance: From the minimizer at the start, in both directions alike.
    """

    block: int
    count: float
    copies: float
    curvature: float
    scale: float
    distance: float


def mean_field_steps(profile: str, groups: Sequence[Group], eta: float, target: float, limit: float) -> float:
    """Steps until the mean gap is at the target, inf beyond the limit.

    Args:
        profile: Name of the loss, in `PROFILES`.
        groups: All coordinates.
        eta: Step size.
        target: Relative gap.
        limit: Most steps.
    """
    blocks = [
        _Block([_State(PROFILES[profile], g, _noise(profile, groups, g, eta)) for g in groups if g.block == block], eta)
        for block in dict.fromkeys(g.block for g in groups)
    ]
    total = start = sum(b.gap for b in blocks)
    t = 0.0
    while total > target * start:
        if t > limit or not 0.0 < total < 1e3 * start:
            return math.inf
        min(blocks, key=lambda b: b.t).advance()
        before, since = total, t
        t = min(b.t for b in blocks)
        total = sum(b.gap_at(t) for b in blocks)
    if total <= 0.0:
        return math.inf
    # The decay inside a step is exponential.
    return t - (t - since) * math.log(target * start / total) / math.log(before / total)


class _Block:
    """The groups that share a direction; no other block's noise reaches them, so their steps in time are their own."""

    def __init__(self, states: list[_State], eta: float) -> None:
        self.states, self.eta = states, eta
        self.step = _FIRST_STEP / (eta * max(s.group.curvature for s in states))
        self.t = self.t_before = 0.0
        self.gap = self.gap_before = sum(s.gap for s in states)
        self.made = 0

    def advance(self) -> None:
        # A point source makes Crank-Nicolson ring: the first steps are short and implicit.
        h, implicit = (self.step / 4.0, 1.0) if self.made < 8 else (max(self.step, _GROWTH * self.t), 0.5)
        noise = sum(s.group.count * max(0.0, 1.5 * s.slope2 - 0.5 * s.slope2_before) for s in self.states)
        for s in self.states:
            s.advance(self.eta, h, noise, implicit)
        self.t_before, self.gap_before = self.t, self.gap
        self.t, self.gap, self.made = self.t + h, sum(s.gap for s in self.states), self.made + 1

    def gap_at(self, t: float) -> float:
        """Within the last step."""
        if not 0.0 < self.gap < self.gap_before:
            return self.gap
        done = (t - self.t_before) / (self.t - self.t_before)
        return self.gap_before * (self.gap / self.gap_before) ** done


def _noise(profile: str, groups: Sequence[Group], g: Group, eta: float) -> float:
    """Standard deviation that a coordinate may get, from the slopes at the start and its own curvature."""
    slope = PROFILES[profile].slope
    total = sum(
        o.count * (o.curvature * o.scale * float(slope(np.asarray(o.distance / o.scale)))) ** 2
        for o in groups
        if o.block == g.block
    )
    return math.sqrt(eta * total / (2.0 * g.curvature))


class _State:
    """The density of one group, over u in units of its scale."""

    def __init__(self, profile: Profile, group: Group, noise: float) -> None:
        self.group = group
        far = group.distance / group.scale
        edge = far + 6.0 * max(noise / group.scale, 0.1 * far)
        cell = max(far / _CELLS_TO_START, 2.0 * edge / _MOST_CELLS)
        faces = np.arange(-np.ceil(edge / cell), np.ceil(edge / cell) + 1) * cell
        u = 0.5 * (faces[1:] + faces[:-1])
        p: Array = np.exp(-0.5 * ((u - far) / cell) ** 2) + np.exp(-0.5 * ((u + far) / cell) ** 2)
        self.p = p / p.sum()
        self.cell = cell
        force = group.curvature * group.scale
        self.drift = -group.curvature * profile.slope(faces[1:-1])  # du/dt over η, in units of the scale
        self.values = group.copies * group.count * force * group.scale * profile.value(u)
        self.slopes2 = (force * profile.slope(u)) ** 2
        self.slope2 = self.slope2_before = float(self.p @ self.slopes2)

    @property
    def gap(self) -> float:
        return float(self.p @ self.values)

    def advance(self, eta: float, h: float, noise: float, implicit: float) -> None:
        p, cell = self.p, self.cell
        spread = 0.5 * eta**2 * (noise + 2.0 * self.slope2) / (self.group.scale**2 * cell)
        half = 0.5 * eta * self.drift
        # Central differences where diffusion wins, upwind ones where they would make a density narrower than a cell
        # turn negative.
        left = np.maximum(np.maximum(spread + half, 2.0 * half), 0.0)
        right = -np.maximum(np.maximum(spread - half, -2.0 * half), 0.0)
        diagonal = np.zeros_like(p)
        diagonal[:-1] -= left
        diagonal[1:] += right
        upper, lower, diagonal = -right / cell, left / cell, diagonal / cell
        back, on = (1.0 - implicit) * h, implicit * h
        moved = p * (1.0 + back * diagonal)
        moved[:-1] += back * upper * p[1:]
        moved[1:] += back * lower * p[:-1]
        bands = np.zeros((3, p.size))
        bands[0, 1:], bands[1], bands[2, :-1] = -on * upper, 1.0 - on * diagonal, -on * lower
        self.p = solve_banded((1, 1), bands, moved, overwrite_ab=True, overwrite_b=True, check_finite=False)
        self.slope2_before, self.slope2 = self.slope2, float(self.p @ self.slopes2)
