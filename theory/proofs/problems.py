r"""The problems on which steps are counted: float64, hypotheses satisfied by construction, constants certified.

Quadratics (which have every radius; R is drawn), smooth functions with R in closed form, piecewise linear curvature
with R exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from theory.losses.piecewise import FloatPiecewise, Piecewise, even, halving, quadratic
from theory.losses.smooth import Kind, RidgeLoss, Smooth
from theory.updates.clipped_newton import Array, Evaluation, Problem, layer_slices

SMOOTH: tuple[Kind, ...] = ("log_cosh", "softplus", "pseudo_huber", "exponential", "cosh")


@dataclass(frozen=True)
class Diagonal:
    """Σ_j φ_j(p_j): the eigenbasis is that of the coordinates; a coordinate may repeat a function."""

    functions: Sequence[FloatPiecewise]

    def __call__(self, p: Array) -> Evaluation:
        """Gap, gradient and the diagonal of the one block."""
        value, slope, curvature = (np.array(c) for c in zip(*map(_call, self.functions, p), strict=True))
        return Evaluation(float(value.sum()), slope, [curvature])


def _call(function: FloatPiecewise, x: float) -> tuple[Array, Array, Array]:
    return function(x)


@dataclass(frozen=True)
class Independent:
    """A sum of one-layer problems."""

    parts: Sequence[Problem]
    dimensions: Sequence[int]

    def __call__(self, p: Array) -> Evaluation:
        """Gap, gradient and one block a layer."""
        found = [part(p[where]) for part, where in zip(self.parts, layer_slices(self.dimensions), strict=True)]
        return Evaluation(
            sum(at.gap for at in found),
            np.concatenate([at.gradient for at in found]),
            [at.blocks[0] for at in found],
        )


@dataclass(frozen=True)
class Layer:
    """A one-layer problem, its certified constants, a start; ``dimension`` counts coordinates left out at 0 too."""

    problem: Problem
    dimension: int
    mu: float
    radius: float
    start: Array


def orthogonal(rng: np.random.Generator, d: int) -> Array:
    """A random basis."""
    basis, _ = np.linalg.qr(rng.normal(size=(d, d)))
    return basis


def log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    """A number whose logarithm is uniform."""
    return float(math.exp(rng.uniform(math.log(low), math.log(high))))


def quadratic_layer(rng: np.random.Generator) -> Layer:
    """Random spectrum in a random basis; R is drawn, for a quadratic satisfies Assumption 2 with every radius."""
    d = int(rng.integers(1, 25))
    sigma = [log_uniform(rng, 0.01, 1.0) for _ in range(d)]
    loss = RidgeLoss(orthogonal(rng, d), [Smooth("quadratic", s) for s in sigma], 0.0, (d,))
    start = rng.normal(size=d)
    return Layer(loss, d, min(sigma), float(np.linalg.norm(start)) * log_uniform(rng, 0.1, 3.0), start)


def _smooth(rng: np.random.Generator) -> Smooth:
    return Smooth(
        SMOOTH[rng.integers(len(SMOOTH))], log_uniform(rng, 0.1, 10.0), log_uniform(rng, 0.3, 3.0), rng.normal()
    )


def one_basis_layer(rng: np.random.Generator) -> Layer:
    """Smooth functions of the coordinates in a random orthonormal basis."""
    d = int(rng.integers(1, 9))
    loss = RidgeLoss(orthogonal(rng, d), [_smooth(rng) for _ in range(d)], log_uniform(rng, 0.01, 1.0), (d,))
    return _placed(rng, loss, d)


def turning_layer(rng: np.random.Generator) -> Layer:
    """Smooth functions along directions that are not orthogonal: the eigenbasis turns from step to step."""
    d = int(rng.integers(2, 9))
    m = d + int(rng.integers(0, 4))
    loss = RidgeLoss(rng.normal(size=(m, d)), [_smooth(rng) for _ in range(m)], log_uniform(rng, 0.01, 1.0), (d,))
    return _placed(rng, loss, d)


def _placed(rng: np.random.Generator, loss: RidgeLoss, d: int) -> Layer:
    start = rng.normal(size=d)
    radius = loss.radius()
    return Layer(loss, d, loss.mus()[0], radius, start * radius * log_uniform(rng, 0.3, 6.0) / np.linalg.norm(start))


def halving_layer(rng: np.random.Generator) -> Layer:
    """One coordinate of the slowest growth that Assumption 2 allows, the d − 1 others at their minimum."""
    depth, d = int(rng.integers(1, 41)), int(rng.integers(1, 21)) ** 2
    f = halving(depth, Fraction(1, 64))
    return Layer(Diagonal([f.in_floats]), d, 1.0, 1.0, np.array([float(depth)]))


def ramp_layer(rng: np.random.Generator) -> Layer:
    """Coordinates with a steep ramp: curvature halved or doubled just inside the start."""
    d = int(rng.integers(1, 9))
    ramp = Fraction(1, 64)
    choices: list[Piecewise] = [even([0, 1, 1 + ramp], [1, 1, Fraction(2) ** k]) for k in (-1, 1)]
    functions = [choices[k] for k in rng.integers(2, size=d)]
    start = np.where(rng.random(d) < 0.5, 1.0, -1.0) * float(1 + ramp)
    radius = 4.0 * math.sqrt(d) * log_uniform(rng, 0.1, 2.0)  # a factor 2 in all: every radius is certified
    return Layer(Diagonal([f.in_floats for f in functions]), d, 1.0, radius, start)


def one_direction_layer(rng: np.random.Generator) -> Layer:
    """A quadratic started along one eigen-direction, the d − 1 others at their minimum; R is drawn."""
    d = int(rng.integers(1, 21)) ** 2
    return Layer(Diagonal([quadratic(1).in_floats]), d, 1.0, log_uniform(rng, 0.2, 2.0), np.array([1.0]))


LAYERS: dict[str, Callable[[np.random.Generator], Layer]] = {
    "quadratic": quadratic_layer,
    "quadratic, one direction": one_direction_layer,
    "smooth, one basis": one_basis_layer,
    "smooth, turning basis": turning_layer,
    "halving": halving_layer,
    "steep ramps": ramp_layer,
}
