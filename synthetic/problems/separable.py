r"""L(theta) = Σ_ij a_ij s_i² phi(u_ij / s_i), u_i = Q_i (theta_i − theta_i*), Q_i a random orthogonal matrix.

Layers do not interact and each layer's Hessian Q_iᵀ diag(a_ij phi''(u_ij / s_i)) Q_i has the same eigenvectors
everywhere, so that all constants are closed forms: mu_i = min_j a_ij, R_i = s_i r with r the profile's radius (for
commuting matrices the typeset norm of Assumption 2 and the Loewner form are one), tr H = Σ a_ij at the minimizer.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Self

import numpy as np
import torch
from torch import Tensor

from synthetic.problems.base import Constants, Problem
from synthetic.problems.layers import Layers
from synthetic.problems.profiles import PROFILES


class Separable(Problem):
    r"""See the module.

    Args:
        profile: Name of phi, in `PROFILES`.
        layers: The partition.
        eigenvalues: a, shape (d,): the Hessian's eigenvalues at the minimizer, layer by layer.
        scales: s_i, one per layer; curvature changes over distances of this size.
        seed: Of the eigenbases and the minimizer; None for the coordinate axes and the origin.

    Raises:
        ValueError: If an eigenvalue or scale is not positive, or there is the wrong number of them.
    """

    separable = True
    _TENSORS = ("eigenvalues", "scales", "turns", "weights")

    def __init__(
        self,
        profile: str,
        layers: Layers,
        eigenvalues: Sequence[float] | np.ndarray,
        scales: Sequence[float] | None = None,
        seed: int | None = 0,
    ) -> None:
        scales = [1.0] * layers.n if scales is None else scales
        for name, values, count in (("eigenvalues", eigenvalues, layers.d), ("scales", scales, layers.n)):
            if len(values) != count or min(values) <= 0:
                raise ValueError(f"{name} must be {count} positive numbers, got {len(values)}, least {min(values)!r}")
        if profile not in PROFILES:
            raise ValueError(f"profile must be one of {', '.join(PROFILES)}, got {profile!r}")
        self.name, self.layers, self.profile = profile, layers, PROFILES[profile]
        self.eigenvalues = torch.as_tensor(np.asarray(eigenvalues, float))
        self.scales = layers.per_coordinate(list(scales))
        self.unit = bool((self.scales == 1.0).all())
        self.weights = self.eigenvalues * self.scales
        self.gap_factor, self.quadratic = self.profile.gap_factor, profile == "quadratic"
        self.minimum = 0.0
        self._draw_bases(seed)
        parts = [self.eigenvalues[part] for part in layers.slices()]
        self.constants = Constants(
            mu=tuple(p.min().item() for p in parts),
            radius=tuple(float(s) * self.profile.radius for s in scales),
            layer_trace=tuple(p.sum().item() for p in parts),
            layer_top=tuple(p.max().item() for p in parts),
            smallest=self.eigenvalues.min().item(),
            largest=self.eigenvalues.max().item(),
            smoothness=self.eigenvalues.max().item() * self.profile.smoothness,
        )

    def _draw_bases(self, seed: int | None) -> None:
        self.turns: list[Tensor] = []  # none where the coordinates are the eigenbasis
        if seed is None:
            self.minimizer = torch.zeros(self.layers.d, dtype=torch.float64)
            return
        rng = np.random.default_rng([seed, *self.layers.sizes])
        self.minimizer = torch.from_numpy(rng.standard_normal(self.layers.d))
        for stretch in self.layers.stretches:
            q, r = np.linalg.qr(rng.standard_normal((stretch.count, stretch.width, stretch.width)))
            signs = np.sign(np.diagonal(r, axis1=-2, axis2=-1))
            self.turns.append(torch.from_numpy(q * signs[:, None, :]))

    def in_eigenbasis(self) -> Self:
        """The same loss of u itself: features are the coordinates."""
        other = copy.copy(self)
        other.turns = []
        return other

    def features(self, x: Tensor) -> Tensor:
        """See `Problem`: u, the layers turned into their eigenbases."""
        return self._turned(x, [turn.mT for turn in self.turns])

    def roots(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """See `Problem`."""
        if not self.quadratic:
            return super().roots(x)
        roots = self.eigenvalues.sqrt()
        if not self.turns:
            return torch.mul(x, roots, out=out)
        scales = [roots[stretch.span].view(stretch.count, 1, stretch.width) for stretch in self.layers.stretches]
        parts = self._parts(x, [turn.mT * scale for turn, scale in zip(self.turns, scales, strict=True)])
        out = torch.empty_like(x) if out is None else out
        for stretch, part in zip(self.layers.stretches, parts, strict=True):
            out[..., stretch.span].view(part.shape).copy_(part)
        return out

    def pullback(self, s: Tensor) -> Tensor:
        """See `Problem`."""
        return self._turned(s, self.turns)

    def _turned(self, x: Tensor, turns: Sequence[Tensor]) -> Tensor:
        if not turns:
            return x
        parts = [part.reshape(*x.shape[:-1], -1) for part in self._parts(x, turns)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def _parts(self, x: Tensor, turns: Sequence[Tensor]) -> Iterator[Tensor]:
        """Stretch by stretch x times the turns, (rows, layers, width), rows being the batch."""
        for stretch, turn in zip(self.layers.stretches, turns, strict=True):
            rows = x[..., stretch.span].reshape(-1, stretch.count, stretch.width)
            yield torch.bmm(rows.transpose(0, 1), turn).transpose(0, 1)

    def gap_terms(self, p: Tensor) -> Tensor:
        """See `Problem`."""
        if self.unit:
            return self.eigenvalues * self.profile.value(p)
        return self.weights * self.scales * self.profile.value(p / self.scales)

    def slope(self, p: Tensor) -> Tensor:
        """See `Problem`."""
        if self.unit:
            return self.eigenvalues * self.profile.slope(p)
        return self.weights * self.profile.slope(p / self.scales)

    def curvature(self, p: Tensor) -> Tensor:
        """See `Problem`."""
        return self.eigenvalues * self.profile.curvature(p / self.scales)

    def diagonal(self, p: Tensor) -> Tensor:
        """See `Problem`: Σ_k Q_kj² times the curvature along k."""
        other = copy.copy(self)
        other.turns = [turn.square() for turn in self.turns]
        return other.pullback(self.curvature(p))

    def hessian(self, x: Tensor) -> Tensor:
        """See `Problem`."""
        basis = self.features(torch.eye(self.layers.d, dtype=x.dtype))  # row k is A e_k
        curvature = self.curvature(self.features(x))
        return (basis * curvature[..., None, :]) @ basis.mT
