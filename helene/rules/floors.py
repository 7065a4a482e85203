r"""Floors λ_i under the curvature, one per layer: a number, or a rule that gives one.

A rule is any callable from a `Layer` to a number above 0. Rules that look at h are asked after each new estimate of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layer:
    """What a rule may look at.

    Attributes:
        name: Name of the layer.
        index: Its position among the layers.
        dimension: d_i.
        step: The step, the first is 1.
        pieces: Gives the parameters' h as it is read (bias corrected where that is on), one flat tensor each.
    """

    name: str
    index: int
    dimension: int
    step: int
    pieces: Callable[[], list[Tensor]]

    def curvature(self) -> Tensor:
        """h of the whole layer, shape (d_i,): a copy of it, as large as the layer."""
        return torch.cat(self.pieces())


class Floor(Protocol):
    """A rule. It looks at h, and is asked again after each estimate, unless its ``looks_at_h`` is False."""

    def __call__(self, layer: Layer) -> float:
        """λ_i of a layer, above 0."""


@dataclass(frozen=True)
class RadiusFloor:
    r"""R_i / (2 √d_i), the theorem's threshold; R_i the same for all layers or one each. It does not look at h.

    The theorem bounds the update by it, Algorithm 1 floors the curvature with it: see ALG-lambda in `theory/`.
    """

    looks_at_h: ClassVar[bool] = False

    radius: float | Sequence[float]

    def __call__(self, layer: Layer) -> float:
        """λ_i of a layer."""
        if isinstance(self.radius, int | float):
            radius = self.radius
        elif layer.index < len(self.radius):
            radius = self.radius[layer.index]
        else:
            raise ValueError(
                f"radius has {len(self.radius)} values, and {layer.name} is layer {layer.index + 1}; give one number, "
                "or one a layer"
            )
        return radius / (2.0 * math.sqrt(layer.dimension))


@dataclass(frozen=True)
class QuantileFloor:
    r"""The element of h below which a share ``quantile`` of the layer lies (no interpolation)."""

    quantile: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.quantile <= 1.0:
            raise ValueError(f"quantile must be in [0, 1], got {self.quantile!r}; 0.5 is the median")

    def __call__(self, layer: Layer) -> float:
        """λ_i of a layer; takes a sort's time and two copies of h, but for the least and the largest."""
        rank = max(1, min(layer.dimension, math.ceil(self.quantile * layer.dimension)))
        if rank in (1, layer.dimension):
            pieces = [piece for piece in layer.pieces() if piece.numel()]
            return max(p.max().item() for p in pieces) if rank > 1 else min(p.min().item() for p in pieces)
        h = layer.curvature()
        return h.kthvalue(rank).values.item()


@dataclass(frozen=True)
class MeanFloor:
    r"""``multiple`` times the mean of the layer's h."""

    multiple: float = 1.0

    def __call__(self, layer: Layer) -> float:
        """λ_i of a layer; one read of h."""
        return self.multiple * sum(piece.double().sum().item() for piece in layer.pieces()) / layer.dimension


RULES = {rule.__name__: rule for rule in (RadiusFloor, QuantileFloor, MeanFloor)}


def as_json(floor: Floor) -> dict[str, Any]:
    """A rule of this module as JSON takes it, for recordings and checkpoints.

    Raises:
        ValueError: If it is a rule from elsewhere.
    """
    if type(floor) not in RULES.values():
        raise ValueError(
            f"the floor {floor!r} is a function, which no file can hold; use a number or a rule of helene.rules.floors "
            "or make checkpoints with torch.save"
        )
    return {"rule": type(floor).__name__, **asdict(floor)}  # type: ignore[call-overload]


def from_json(value: Any) -> Any:
    """What `as_json` was given; anything else as it is.

    Raises:
        ValueError: If it names no rule of this module.
    """
    if not isinstance(value, Mapping):
        return value
    rest = {name: entry for name, entry in value.items() if name != "rule"}
    if value.get("rule") not in RULES:
        raise ValueError(f"a floor is the rule {value.get('rule')!r}; known are {', '.join(RULES)}")
    return RULES[value["rule"]](**rest)


torch.serialization.add_safe_globals(list(RULES.values()))  # so that torch.load reads a state_dict that holds one
