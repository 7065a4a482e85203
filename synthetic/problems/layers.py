"""How a vector of d coordinates falls into layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby

import torch
from torch import Tensor


@dataclass(frozen=True)
class Stretch:
    """Consecutive layers of equal width, so that they batch as (count, width)."""

    start: int
    count: int
    width: int
    first_layer: int

    @property
    def span(self) -> slice:
        """Where it lies in the vector."""
        return slice(self.start, self.start + self.count * self.width)


@dataclass(frozen=True)
class Layers:
    """Layer i holds ``sizes[i]`` coordinates; layers follow one another.

    Raises:
        ValueError: If there is no layer or one is empty.
    """

    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 1:
            raise ValueError(
                f"sizes must be one or more positive integers, got {self.sizes!r}; a layer has at least one"
            )

    @classmethod
    def equal(cls, n: int, w: int) -> Layers:
        """n layers of width w."""
        return cls((w,) * n)

    @property
    def n(self) -> int:
        """Number of layers."""
        return len(self.sizes)

    @cached_property
    def d(self) -> int:
        """Total dimension."""
        return sum(self.sizes)

    @cached_property
    def max_d(self) -> int:
        """Largest dimension of a layer."""
        return max(self.sizes)

    @cached_property
    def stretches(self) -> tuple[Stretch, ...]:
        """Consecutive layers of equal width."""
        stretches, start, layer = [], 0, 0
        for width, group in groupby(self.sizes):
            count = len(list(group))
            stretches.append(Stretch(start, count, width, layer))
            start, layer = start + count * width, layer + count
        return tuple(stretches)

    def slices(self) -> list[slice]:
        """The place of each layer in the vector."""
        ends = list(accumulate(self.sizes))
        return [slice(end - size, end) for end, size in zip(ends, self.sizes, strict=True)]

    def sum(self, x: Tensor) -> Tensor:
        """Sums within layers: (..., d) to (..., n)."""
        parts = [x[..., s.span].unflatten(-1, (s.count, s.width)).sum(-1) for s in self.stretches]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def spread(self, c: Tensor) -> Tensor:
        """One value per layer to each of its coordinates: (..., n) to (..., d)."""
        parts = [
            c[..., s.first_layer : s.first_layer + s.count, None].expand(*c.shape[:-1], s.count, s.width).flatten(-2)
            for s in self.stretches
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def per_coordinate(self, values: Sequence[float]) -> Tensor:
        """`spread` of one number per layer, float64."""
        return self.spread(torch.as_tensor(values, dtype=torch.float64))
