r"""One-dimensional losses phi with phi(0) = phi'(0) = 0, phi''(0) = 1, from which the separable families are made.

Each states its *radius*: the largest r with ½ phi''(u) <= phi''(v) <= 2 phi''(u) whenever |u − v| <= r, proved in its
docstring; and b with phi(u) >= b u phi'(u), where one is at hand.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F


class Profile(Protocol):
    """A strictly convex function of one variable, elementwise on tensors."""

    @property
    def radius(self) -> float:
        """See the module's docstring."""

    @property
    def gap_factor(self) -> float | None:
        """b in phi(u) >= b u phi'(u); None if there is none at hand."""

    @property
    def smoothness(self) -> float:
        """Supremum of phi''."""

    def value(self, u: Tensor) -> Tensor:
        """phi."""

    def slope(self, u: Tensor) -> Tensor:
        """phi'."""

    def curvature(self, u: Tensor) -> Tensor:
        """phi''."""


@dataclass(frozen=True)
class Square:
    """u²/2. Its curvature never changes, so every radius serves."""

    radius: float = math.inf
    gap_factor: float = 0.5
    smoothness: float = 1.0

    def value(self, u: Tensor) -> Tensor:
        """See `Profile`."""
        return 0.5 * u * u

    def slope(self, u: Tensor) -> Tensor:
        """See `Profile`."""
        return u

    def curvature(self, u: Tensor) -> Tensor:
        """See `Profile`."""
        return torch.ones_like(u)


@dataclass(frozen=True)
class LogCosh:
    r"""log cosh u.

    phi'' = sech². With r = |u − v|, phi''(u) / phi''(v) = (cosh v / cosh u)², and cosh(u + r) <= eʳ cosh u since
    e^{u + r} + e^{−u − r} <= eʳ (e^u + e^{−u}); as u → ∞ the ratio tends to e^{2r}. So the largest r is (ln 2) / 2.
    The tangent of tanh lies above its chord from 0 for u > 0 (tanh is concave there), so phi(u) >= u tanh(u) / 2.
    """

    radius: float = math.log(2.0) / 2.0
    gap_factor: float = 0.5
    smoothness: float = 1.0

    def value(self, u: Tensor) -> Tensor:
        """See `Profile`; log1p(2 sinh²(u/2)) keeps its relative accuracy near 0, the other form far out."""
        near = torch.log1p(2.0 * torch.sinh(0.5 * u.clamp(-2.0, 2.0)).square())
        far = u.abs() + torch.log1p(torch.exp(-2.0 * u.abs())) - math.log(2.0)
        return torch.where(u.abs() < 2.0, near, far)

    def slope(self, u: Tensor) -> Tensor:
        """See `Profile`; tanh by the sigmoid, six times faster in torch and exact to a unit roundoff of 1."""
        return (2.0 * torch.sigmoid(2.0 * u)).sub_(1.0)

    def curvature(self, u: Tensor) -> Tensor:
        """See `Profile`; 4 q (1 − q) with q = 1 / (1 + e^{−2|u|}) does not cancel."""
        e = torch.exp(-2.0 * u.abs())
        return 4.0 * e / (1.0 + e).square()


@dataclass(frozen=True)
class Softplus:
    r"""log(1 + e^{u + a}) − q u up to a constant, scaled so that phi''(0) = 1, with q = ``level`` and a = logit(q).

    Lopsided unless q = ½: the slope saturates at −1/(1 − q) on the left and 1/q on the right.
    phi'' is proportional to s(1 − s), s = sigmoid(u + a), whose logarithm has the slope 1 − 2s in (−1, 1), both ends
    approached: over a move r the ratio stays below e^r and comes as near as one likes. So the largest r is ln 2.
    """

    level: float = 0.2
    gap_factor: float | None = None

    @property
    def shift(self) -> float:
        """logit(level), where the sigmoid takes the value ``level``."""
        return math.log(self.level / (1.0 - self.level))

    @property
    def scale(self) -> float:
        """Of phi, so that phi''(0) = 1."""
        return 1.0 / (self.level * (1.0 - self.level))

    @property
    def radius(self) -> float:
        """See `Profile`."""
        return math.log(2.0)

    @property
    def smoothness(self) -> float:
        """See `Profile`; s(1 − s) <= 1/4."""
        return 0.25 * self.scale

    def value(self, u: Tensor) -> Tensor:
        """See `Profile`; log(1 + q (e^u − 1)) − q u is softplus(u + a) − softplus(a) − q u without its cancellation."""
        q = self.level
        near = torch.log1p(q * torch.expm1(u.clamp(-1.0, 1.0))) - q * u
        far = F.softplus(u + self.shift, threshold=40.0) + math.log1p(-q) - q * u
        return self.scale * torch.where(u.abs() < 1.0, near, far)

    def slope(self, u: Tensor) -> Tensor:
        """See `Profile`."""
        return self.scale * (torch.sigmoid(u + self.shift) - self.level)

    def curvature(self, u: Tensor) -> Tensor:
        """See `Profile`."""
        e = torch.exp(-(u + self.shift).abs())
        return self.scale * e / (1.0 + e).square()


@dataclass(frozen=True)
class Quartic:
    r"""u²/2 + u⁴/4, steeper than any quadratic far out.

    phi'' = 1 + 3u². With a = √3 u and s = √3 r, the largest (1 + (a + s)²) / (1 + a²) over a is (s/2 + √(1 + s²/4))²,
    at a = √(1 + s²/4) − s/2. It is 2 for s = √2 − 1/√2 = 1/√2, so r = 1/√6. And 4 phi = 2u² + u⁴ >= u² + u⁴ = u phi'.
    """

    radius: float = 1.0 / math.sqrt(6.0)
    gap_factor: float = 0.25
    smoothness: float = math.inf

    def value(self, u: Tensor) -> Tensor:
        """See `Profile`."""
        v = u * u
        return v * (0.5 + 0.25 * v)

    def slope(self, u: Tensor) -> Tensor:
        """See `Profile`."""
        return u * (1.0 + u * u)

    def curvature(self, u: Tensor) -> Tensor:
        """See `Profile`."""
        return 1.0 + 3.0 * u * u


PROFILES: dict[str, Profile] = {
    "quadratic": Square(),
    "log_cosh": LogCosh(),
    "softplus": Softplus(),
    "quartic": Quartic(),
}
