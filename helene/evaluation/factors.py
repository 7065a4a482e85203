r"""Directions of low rank, one for each group of a batch: a few vectors that are drawn, never a matrix.

For a matrix of shape (m, n), z = r^-1/2 Σ_k u_k v_kᵀ with u_k and v_k of independent elements of mean 0 and variance 1;
for a vector or a number, z has such elements itself. So E[z zᵀ] = I in both cases.

Group g's numbers for a parameter are elements [g s, (g + 1) s) of `helene.noise` at the step's key, s = r (m + n) or
the vector's length: first the u_k, then the v_k. They depend on no other group, nor on how many there are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from helene import noise
from helene.evaluation.directions import Target, compute_dtype


class Factor(NamedTuple):
    """The directions of one parameter.

    Attributes:
        left: u of a matrix, shape (groups, rank, m), or z of a vector, shape (groups, n).
        right: v of a matrix, shape (groups, rank, n), None for a vector.
    """

    left: Tensor
    right: Tensor | None


class Factors:
    """The directions of one step, drawn when they are first asked for and kept as long as this is.

    Args:
        targets: The trained parameters, none with more than two axes.
        seed: Of the run.
        step: Of the run.
        groups: Number of directions.
        rank: r.
        signs: Whether elements are ±1; else they are standard normal.
    """

    def __init__(
        self, targets: Sequence[Target], seed: int, step: int, *, groups: int, rank: int, signs: bool = False
    ) -> None:
        self.targets, self.groups, self.rank = targets, groups, rank
        self._key, self._signs = (seed, step), signs
        self._drawn: dict[tuple[int, torch.dtype], Factor] = {}

    @property
    def scale(self) -> float:
        """r^-1/2, by which the sum over k is multiplied."""
        return 1.0 / math.sqrt(self.rank)

    def of(self, index: int, dtype: torch.dtype | None = None) -> Factor:
        """The directions of a parameter, in the dtype of arithmetic unless another is asked for."""
        p = self.targets[index].tensor
        wide = compute_dtype(p.dtype)
        key = index, dtype or wide
        if key not in self._drawn:
            if key[1] == wide:
                self._drawn[key] = self._draw(index, wide)
            else:
                self._drawn[key] = Factor(*(t if t is None else t.to(key[1]) for t in self.of(index)))
        return self._drawn[key]

    def _draw(self, index: int, dtype: torch.dtype) -> Factor:
        target, make = self.targets[index], noise.signs if self._signs else noise.normal
        shape = target.tensor.shape
        size = self.rank * sum(shape) if len(shape) == 2 else shape.numel()
        drawn = make(*self._key, 0, target.id, 0, self.groups * size, target.tensor.device)
        rows = drawn.to(dtype).view(self.groups, size)
        if len(shape) != 2:
            return Factor(rows, None)
        left, right = rows.split([self.rank * shape[0], self.rank * shape[1]], dim=1)
        return Factor(*(part.reshape(self.groups, self.rank, -1) for part in (left, right)))

    def alternating(self) -> Factors:
        """These with every second group's direction reversed."""
        signs = 1.0 - 2.0 * (torch.arange(self.groups) % 2)
        turned = Factors(self.targets, *self._key, groups=self.groups, rank=self.rank, signs=self._signs)
        for index in range(len(self.targets)):
            left, right = self.of(index)
            sign = signs.to(left).view(-1, *[1] * (left.dim() - 1))
            turned._drawn[index, left.dtype] = Factor(left * sign, right)
        return turned

    def combination(self, coefficients: Sequence[float]) -> Any:
        """Σ_g a_g z_g by chunks, a `helene.steps.measurement.Chunk`."""
        weights: dict[Any, Tensor] = {}

        def chunk(index: int, start: int, end: int) -> Tensor:
            left, right = self.of(index)
            kind = left.device, left.dtype
            if kind not in weights:
                weights[kind] = torch.tensor(coefficients, device=left.device, dtype=left.dtype)
            if right is None:
                return weights[kind] @ left[:, start:end]
            columns = right.shape[2]
            first, last = start // columns, -(-end // columns)
            part = left[:, :, first:last] * (weights[kind] * self.scale)[:, None, None]
            block = _exact_product(part.flatten(0, 1).T, right.flatten(0, 1))
            return block.reshape(-1)[start - first * columns : end - first * columns]

        return chunk


def _exact_product(a: Tensor, b: Tensor) -> Tensor:
    """a b in full float32, also where the model's own products are TF32's."""
    if not a.is_cuda or not torch.backends.cuda.matmul.allow_tf32:
        return a @ b
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        return a @ b
    finally:
        torch.backends.cuda.matmul.allow_tf32 = True
