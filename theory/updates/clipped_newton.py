r"""The theorem's update: the Newton step, clipped coordinate by coordinate in the Hessian's eigenbasis, layer by layer.

For a layer with gradient g and Hessian H = Vᵀ diag(σ) V the update is θ ← θ − η Vᵀ clip(Σ⁻¹ V g, ρ) (the paper's
appendix; its λ_i is the clip ρ_i here). Float64 arithmetic on plain arrays: numpy only, no state, no randomness.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Array = np.ndarray


@dataclass(frozen=True)
class Evaluation:
    """What a step needs of a loss at one point.

    Attributes:
        gap: L − min L.
        gradient: ∇L, shape (d,).
        blocks: The layers' diagonal blocks H_ii: each (d_i, d_i), or (d_i,) where the block is diagonal.
    """

    gap: float
    gradient: Array
    blocks: Sequence[Array]


#: A loss over layers, told as a function of the displacement p = θ − θ* from its minimizer.
Problem = Callable[[Array], Evaluation]


def theorem_clip(radius: float, dimension: int) -> float:
    """ρ_i = R_i / (2 √d_i)."""
    return radius / (2.0 * math.sqrt(dimension))


def clipped_newton(gradient: Array, hessian: Array, clip: float) -> Array:
    r"""Vᵀ clip(Σ⁻¹ V g, ρ), the direction that the update subtracts.

    Args:
        gradient: g, shape (d,).
        hessian: H, shape (d, d) and positive definite; or its diagonal, shape (d,), where it is diagonal (V = I).
        clip: ρ > 0, in units of θ; infinity gives Newton's direction.

    Returns:
        The direction, shape (d,).

    Raises:
        ValueError: If the clip is not positive or the Hessian not positive definite.

    Departures from the paper: where an eigenvalue is multiple, V is the basis that the eigensolver returns.
    """
    if not clip > 0:
        raise ValueError(f"clip must be positive, got {clip!r}; the theorem takes R_i / (2 sqrt(d_i))")
    sigma, u, basis = eigen_coordinates(gradient, hessian)
    clipped = np.clip(u / sigma, -clip, clip)
    return clipped if basis is None else basis @ clipped


def eigen_coordinates(gradient: Array, hessian: Array) -> tuple[Array, Array, Array | None]:
    """σ, u = V g and Vᵀ; None for Vᵀ where the Hessian is given as its diagonal.

    Raises:
        ValueError: If the Hessian is not positive definite.
    """
    if hessian.ndim == 1:
        sigma, u, basis = hessian, gradient, None
    else:
        sigma, basis = np.linalg.eigh(hessian)
        u = basis.T @ gradient
    if not sigma.min() > 0:
        raise ValueError(f"the Hessian must be positive definite, got an eigenvalue {sigma.min()!r}")
    return sigma, u, basis


#: What a layer's update subtracts, from its gradient, its Hessian and a size (a clip, a radius).
Direction = Callable[[Array, Array, float], Array]


def layer_slices(dimensions: Sequence[int]) -> list[slice]:
    """Where each layer's coordinates stand in the whole vector."""
    ends = np.cumsum(dimensions)
    return [slice(int(end - d), int(end)) for d, end in zip(dimensions, ends, strict=True)]


def step(
    at: Evaluation,
    p: Array,
    dimensions: Sequence[int],
    clips: Sequence[float],
    lr: float = 0.5,
    direction: Direction = clipped_newton,
) -> Array:
    """All layers at once: the new displacement, shape (d,)."""
    new = p.copy()
    for where, block, clip in zip(layer_slices(dimensions), at.blocks, clips, strict=True):
        new[where] -= lr * direction(at.gradient[where], block, clip)
    return new


def sweep(problem: Problem, p: Array, dimensions: Sequence[int], clips: Sequence[float], lr: float = 0.5) -> Array:
    """One layer after the other, each at the point that the ones before it have reached."""
    new = p.copy()
    for i, where in enumerate(layer_slices(dimensions)):
        at = problem(new)
        new[where] -= lr * clipped_newton(at.gradient[where], at.blocks[i], clips[i])
    return new


@dataclass(frozen=True)
class Count:
    """Result of :func:`count_steps`.

    Attributes:
        steps: The first step count at which the gap is at most the target, or the budget.
        status: Whether the target was reached.
        first_gap: The gap at the start.
        p: The last displacement.
    """

    steps: int
    status: Literal["reached", "out_of_budget"]
    first_gap: float
    p: Array


def count_steps(
    problem: Problem,
    p: Array,
    target: float,
    budget: int,
    dimensions: Sequence[int],
    clips: Sequence[float],
    lr: float = 0.5,
    *,
    in_turn: bool = False,
    direction: Direction = clipped_newton,
) -> Count:
    """Steps (or, ``in_turn``, sweeps) until the gap is at most the target or the budget is spent.

    ``clips`` holds each layer's size for the direction: a clip, or a radius for those of ``clipped_by_length``, which
    sweeps do not take.
    """
    at = problem(p)
    first_gap, steps = at.gap, 0
    while at.gap > target and steps < budget:
        p = sweep(problem, p, dimensions, clips, lr) if in_turn else step(at, p, dimensions, clips, lr, direction)
        at, steps = problem(p), steps + 1
    return Count(steps, "reached" if at.gap <= target else "out_of_budget", first_gap, p)
