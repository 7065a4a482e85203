r"""What a problem offers: a convex loss, its layers, and constants that are certified.

Everything works on displacements x = theta − minimizer, so that a gap of 1e-12 is as exact as one of 1. A loss is a
function of *features* p = A x, A a fixed matrix: a turn of each layer for the separable families, the data matrix for
regressions. So a simulator pays for A z once per direction, however many runs share it.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from synthetic.problems.layers import Layers

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class Constants:
    r"""What theory needs to know of a problem.

    Attributes:
        mu: Per layer, smallest eigenvalue of the layer's Hessian block at the minimizer (Assumption 1).
        radius: Per layer, R_i of Assumption 2 in the Loewner form ½H ⪯ H' ⪯ 2H for moves of that layer alone, the
            others anywhere; certified, see each family; inf on quadratics.
        layer_trace: Per layer, trace of its block at the minimizer.
        layer_top: Per layer, largest eigenvalue of its block at the minimizer.
        smallest: Smallest eigenvalue of the whole Hessian at the minimizer.
        largest: Largest one.
        smoothness: Upper bound of the Hessian's eigenvalues everywhere; inf where there is none.
    """

    mu: tuple[float, ...]
    radius: tuple[float, ...]
    layer_trace: tuple[float, ...]
    layer_top: tuple[float, ...]
    smallest: float
    largest: float
    smoothness: float

    @property
    def trace(self) -> float:
        """tr H at the minimizer."""
        return sum(self.layer_trace)


class Problem(ABC):
    r"""A strictly convex loss with a known minimizer.

    Attributes:
        name: As in designs and records.
        layers: The partition; `layers.sizes` are the d_i.
        minimum: Smallest loss.
        minimizer: Where, shape (d,), float64.
        constants: See `Constants`.
        separable: Whether the loss is a sum over features and A an orthogonal turn inside each layer. Then methods that
            commute with turns run on the features themselves.
        gap_factor: b with gap >= b xᵀ∇L(x), so that the gap itself is needed only near the target; None if unknown.
        quadratic: Whether the Hessian is the same everywhere, so that `roots` has a meaning.
    """

    name: str
    layers: Layers
    minimum: float
    minimizer: Tensor
    constants: Constants
    separable: bool = False
    gap_factor: float | None = None
    quadratic: bool = False
    _TENSORS: tuple[str, ...] = ()

    @abstractmethod
    def features(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch p"]:
        """A x."""

    @abstractmethod
    def pullback(self, s: Float[Tensor, "*batch p"]) -> Float[Tensor, "*batch d"]:
        """Aᵀ s."""

    @abstractmethod
    def gap_terms(self, p: Float[Tensor, "*batch p"]) -> Float[Tensor, "*batch q"]:
        """Terms whose sum is the loss above its minimum; one per feature where the problem is separable."""

    @abstractmethod
    def slope(self, p: Float[Tensor, "*batch p"]) -> Float[Tensor, "*batch p"]:
        """Derivative of the loss by its features."""

    @abstractmethod
    def hessian(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d d"]:
        """Second derivatives by x."""

    def gap(self, p: Float[Tensor, "*batch p"]) -> Float[Tensor, "*batch"]:
        """Loss above its minimum, from features."""
        return self.gap_terms(p).sum(-1)

    def gap_below(self, p: Float[Tensor, "*batch p"], s: Float[Tensor, "*batch p"]) -> Float[Tensor, "*batch"]:
        """A lower bound of the gap, cheaper than the gap where there is one; ``s`` is the slope at p."""
        if self.gap_factor is None:
            return self.gap(p)
        return self.gap_factor * torch.linalg.vecdot(p, s)

    def roots(
        self, x: Float[Tensor, "*batch d"], out: Float[Tensor, "*batch d"] | None = None
    ) -> Float[Tensor, "*batch d"]:
        """B x with H = BᵀB, so that the gap is ½‖B x‖², where the loss is quadratic; in ``out`` if given, maybe x."""
        raise NotImplementedError(f"{self.name} is not quadratic")

    def in_eigenbasis(self) -> Self:
        """The loss as a function of its features, where the problem is separable."""
        raise NotImplementedError(f"{self.name} is not separable")

    def curvature(self, p: Float[Tensor, "*batch p"]) -> Float[Tensor, "*batch p"]:
        """Second derivatives by the features, where the problem is separable."""
        raise NotImplementedError(f"{self.name} is not separable")

    def diagonal(self, p: Float[Tensor, "*batch p"]) -> Float[Tensor, "*batch d"]:
        """The Hessian's diagonal in the coordinates, from features."""
        raise NotImplementedError(f"{self.name} has no cheap diagonal")

    def blocks(self, x: Float[Tensor, "*batch d"]) -> list[Float[Tensor, "*batch count w w"]]:
        """The Hessian's diagonal blocks, those of a stretch of equal layers together."""
        whole, parts = self.hessian(x), []
        for stretch in self.layers.stretches:
            rows = whole[..., stretch.span, stretch.span].unflatten(-1, (stretch.count, stretch.width))
            rows = rows.unflatten(-3, (stretch.count, stretch.width))
            parts.append(torch.diagonal(rows, dim1=-4, dim2=-2).movedim(-1, -3))
        return parts

    def loss(self, theta: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch"]:
        """L(theta)."""
        return self.minimum + self.gap(self.features(theta - self.minimizer.to(theta.dtype)))

    def gradient(self, theta: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """∇L(theta)."""
        return self.pullback(self.slope(self.features(theta - self.minimizer.to(theta.dtype))))

    def to(self, dtype: torch.dtype) -> Self:
        """The same problem with its arrays in another dtype; the minimizer stays float64."""
        other = copy.copy(self)
        for name in self._TENSORS:
            setattr(
                other, name, [t.to(dtype) for t in v] if isinstance(v := getattr(self, name), list) else v.to(dtype)
            )
        return other
