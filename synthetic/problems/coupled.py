r"""Quadratics whose layers interact: H = M^{1/2} C M^{1/2}, M the block diagonal of H, C with identity blocks.

C = I + (nu − 1)/(n − 1) Σ_{i≠j} V_i V_jᵀ with V_i of r = min d_i orthonormal columns. On (V_1 z, ..., V_n z) it is nu,
on (V_1 z_1, ..., V_n z_n) with Σ z_i = 0 it is 1 − (nu − 1)/(n − 1), elsewhere 1. So nu is the largest and
kappa = 1 − (nu − 1)/(n − 1) the smallest eigenvalue of M^{-1/2} H M^{-1/2}, exactly; nu runs from 1 to below n.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from synthetic.problems.base import Constants, Problem
from synthetic.problems.layers import Layers


class Coupled(Problem):
    r"""See the module.

    Args:
        layers: The partition, at least two layers unless nu is 1.
        eigenvalues: Of the blocks of M, layer by layer, shape (d,).
        nu: Coupling, 1 <= nu < n.
        seed: Of the bases and the minimizer.

    Raises:
        ValueError: If nu is out of range, or the eigenvalues are not d positive numbers.
    """

    gap_factor, quadratic = 0.5, True
    _TENSORS = ("root",)

    def __init__(self, layers: Layers, eigenvalues: Sequence[float] | np.ndarray, nu: float, seed: int = 0) -> None:
        n, a = layers.n, np.asarray(eigenvalues, float)
        if not (nu == 1.0 or 1.0 < nu < n):
            raise ValueError(
                f"nu must be 1 or in (1, n) for n = {n} layers, got {nu!r}; at n the loss is not strictly convex"
            )
        if a.shape != (layers.d,) or a.min() <= 0:
            raise ValueError(f"eigenvalues must be {layers.d} positive numbers, got {a.size}, least {a.min()!r}")
        self.name, self.layers, self.nu = "coupled", layers, nu
        share = (nu - 1.0) / (n - 1.0) if n > 1 else 0.0
        self.kappa = 1.0 - share if n > 1 else 1.0
        rng = np.random.default_rng([seed, *layers.sizes])
        rank = min(layers.sizes)
        half, columns = np.zeros((layers.d, layers.d)), np.zeros((layers.d, rank))
        for part in layers.slices():
            width = part.stop - part.start
            q = np.linalg.qr(rng.standard_normal((width, width)))[0]
            half[part, part] = (q * np.sqrt(a[part])) @ q.T
            columns[part] = np.linalg.qr(rng.standard_normal((width, rank)))[0]
        c = share * (columns @ columns.T)
        for part in layers.slices():
            c[part, part] = np.eye(part.stop - part.start)
        matrix = half @ c @ half
        self.matrix = torch.from_numpy(0.5 * (matrix + matrix.T))
        self.root = torch.linalg.cholesky(self.matrix)  # H = root rootᵀ
        self.minimum, self.minimizer = 0.0, torch.from_numpy(rng.standard_normal(layers.d))
        whole = torch.linalg.eigvalsh(self.matrix)
        parts = [a[part] for part in layers.slices()]
        self.constants = Constants(
            mu=tuple(float(p.min()) for p in parts),
            radius=(math.inf,) * n,
            layer_trace=tuple(float(p.sum()) for p in parts),
            layer_top=tuple(float(p.max()) for p in parts),
            smallest=whole[0].item(),
            largest=whole[-1].item(),
            smoothness=whole[-1].item(),
        )

    def features(self, x: Tensor) -> Tensor:
        """See `Problem`."""
        return x @ self.root

    def roots(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """See `Problem`."""
        return self.features(x) if out is None else out.copy_(self.features(x))

    def pullback(self, s: Tensor) -> Tensor:
        """See `Problem`."""
        return s @ self.root.mT

    def gap_terms(self, p: Tensor) -> Tensor:
        """See `Problem`."""
        return 0.5 * p * p

    def slope(self, p: Tensor) -> Tensor:
        """See `Problem`."""
        return p

    def diagonal(self, p: Tensor) -> Tensor:
        """See `Problem`."""
        return self.matrix.diagonal().to(p.dtype).expand_as(p)

    def hessian(self, x: Tensor) -> Tensor:
        """See `Problem`."""
        return self.matrix.to(x.dtype).expand(*x.shape[:-1], -1, -1)
