r"""Directions of low rank, one for each group of a batch: a few vectors that are drawn, never a matrix.

For a matrix of shape (m, n), z = r^-1/2 Σ_k u_k v_kᵀ with u_k and v_k of independent elements of mean 0 and variance 1;
for a vector or a number, z has such elements itself. So E[z zᵀ] = I in both cases.

Group g's numbers for a parameter are elements [g s, (g + 1) s) of `helene.noise` at the step's key, s = r (m + n) or
the vector's length: first the u_k, then the v_k. They depend on no other group, nor on how many there are.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from helene.evaluation.directions import Direction, Drawn, Target, compute_dtype


class Factor(NamedTuple):
    """The directions of one parameter.

    Attributes:
        left: u of a matrix, shape (groups, rank, m), or z of a vector, shape (groups, n).
        right: v of a matrix, shape (groups, rank, n), None for a vector.
    """

    left: Tensor
    right: Tensor | None


class Factors:
    """The directions of a step, in memory that stays where it is from step to step; 0 before the first `draw`.

    Args:
        targets: The trained parameters, none with more than two axes.
        groups: Number of directions.
        rank: r.
        signs: Whether elements are ±1; else they are standard normal.
    """

    def __init__(self, targets: Sequence[Target], *, groups: int, rank: int, signs: bool = False) -> None:
        self.targets, self.groups, self.rank, self.signs = list(targets), groups, rank, signs
        self._first, self._all = 0, groups
        shapes = [target.tensor.shape for target in targets]
        sizes = [groups * (rank * sum(shape) if len(shape) == 2 else shape.numel()) for shape in shapes]
        self._drawn = Drawn(self.targets, sizes)
        self._made: dict[tuple[int, torch.dtype], Factor] = {}

    def numbers(self, device: torch.device) -> Tensor:
        """All that is drawn on a device, float32, one axis."""
        return self._drawn.flats[device, torch.float32]

    def place(self, index: int) -> tuple[int, int]:
        """Where a parameter's numbers start in `numbers`, and how many columns it has: 0 if it is no matrix."""
        shape, numbers = self.targets[index].tensor.shape, self._drawn.parts[index]
        start = numbers.storage_offset() + self._first * (numbers.numel() // self._all)
        return int(start), shape[1] if len(shape) == 2 else 0

    @property
    def scale(self) -> float:
        """r^-1/2, by which the sum over k is multiplied."""
        return 1.0 / math.sqrt(self.rank)

    @property
    def num_bytes(self) -> int:
        """Bytes of the numbers drawn."""
        return sum(flat.nbytes for flat in self._drawn.flats.values())

    def draw(self, seed: int, step: int) -> Factors:
        """Have the directions of a step."""
        self.forget()
        self._drawn.draw(Direction(seed, step, 0, self.signs))
        return self

    def forget(self) -> None:
        """Make copies in other dtypes anew when they are asked for."""
        self._made.clear()

    def of(self, index: int, dtype: torch.dtype | None = None) -> Factor:
        """The directions of a parameter, in the dtype of arithmetic unless another is asked for."""
        target = self.targets[index].tensor
        key = index, dtype or compute_dtype(target.dtype)
        if key not in self._made:
            rows = self._drawn.parts[index].view(self._all, -1)[self._first : self._first + self.groups].to(key[1])
            if target.dim() != 2:
                self._made[key] = Factor(rows, None)
            else:
                sides = rows.split([self.rank * size for size in target.shape], dim=1)
                self._made[key] = Factor(*(side.unflatten(1, (self.rank, -1)) for side in sides))
        return self._made[key]

    def part(self, first: int, groups: int) -> Factors:
        """Some of these groups, as they are drawn here."""
        made = copy.copy(self)
        made._first, made.groups, made._made = self._first + first, groups, {}
        return made

    def reversed_where(self, bit: int) -> Factors:
        """These with the directions reversed of groups whose number has that bit, in memory of their own."""
        chosen = [g for g in range(self.groups) if g >> bit & 1]
        turned = Factors(self.targets, groups=self.groups, rank=self.rank, signs=self.signs)
        for index in range(len(self.targets)):
            mine, theirs = self.of(index), turned.of(index, torch.float32)
            theirs.left.copy_(mine.left)
            theirs.left[chosen] = -theirs.left[chosen]
            if mine.right is not None and theirs.right is not None:
                theirs.right.copy_(mine.right)
        turned.forget()
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


class Mirrored:
    """The directions of a step, and then their opposites, as groups of a batch that holds its examples twice.

    Args:
        factors: The directions, whose numbers stay the only ones.
    """

    def __init__(self, factors: Factors) -> None:
        self.factors, self.groups = factors, 2 * factors.groups
        self.rank, self.scale, self.numbers, self.place = factors.rank, factors.scale, factors.numbers, factors.place

    def of(self, index: int, dtype: torch.dtype | None = None) -> Factor:
        """As of `Factors`; u has both signs, v one."""
        left, right = self.factors.of(index, dtype)
        return Factor(torch.cat([left, -left]), None if right is None else torch.cat([right, right]))


def _exact_product(a: Tensor, b: Tensor) -> Tensor:
    """a b in full float32, also where the model's own products are TF32's."""
    if not a.is_cuda or not torch.backends.cuda.matmul.allow_tf32:
        return a @ b
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        return a @ b
    finally:
        torch.backends.cuda.matmul.allow_tf32 = True
