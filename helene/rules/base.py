"""What an update rule is: frozen hyper-parameters of one layer, a state, and ``init`` and ``update`` over them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from helene import functional
from helene.inputs import numeric

Scalar = float | Tensor  # a tensor where many runs move at once, one number each


class NoState(NamedTuple):
    """Of a rule that remembers nothing."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Hyper-parameters of one layer at one step, and the update that they define.

    Every path moves parameters by these methods, or by a kernel that is tested against them: the torch classes chunk
    by chunk, the simulators on many runs at once (hyper-parameters may then be tensors that broadcast).

    Attributes:
        lr: Learning rate, >= 0.
        weight_decay: Coefficient of the decay, >= 0.

    Raises:
        ValueError: If a hyper-parameter is out of its range.
    """

    State: ClassVar[Any] = NoState
    INITIAL: ClassVar[Mapping[str, float]] = {}  # what a state starts from where that is not 0
    COUNTERS: ClassVar[tuple[str, ...]] = ()  # states that are one count a parameter
    SHARED: ClassVar[tuple[str, ...]] = ()  # hyper-parameters that all layers have in common

    coupled: ClassVar[bool] = False  # whether the decay is part of g

    lr: Scalar
    weight_decay: Scalar = 0.0

    def __post_init__(self) -> None:
        numeric.nonnegative(self.lr, "lr")
        numeric.nonnegative(self.weight_decay, "weight_decay")

    @property
    def kept(self) -> tuple[str, ...]:
        """Names of the states that these hyper-parameters need; the other fields of ``State`` are None."""
        fields: tuple[str, ...] = self.State._fields
        return fields

    def init(self, theta: Tensor) -> Any:
        """The state before the first step, tensors like theta."""
        return self.State(*(self._initial(name, theta) for name in self.State._fields))

    def update(
        self, step: int, theta: Tensor, g: Tensor, state: Any, estimate: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """One step: the new theta and state. The inputs stay; a state that did not change is returned as it came.

        Args:
            step: t, the first is 1.
            theta: Parameters.
            g: Gradient estimate, shape of theta.
            state: What ``init`` or the last step gave.
            estimate: Curvature estimate of this step, where one is made (`CurvatureRule.estimate`).
        """
        raise NotImplementedError

    def decayed(self, theta: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """(theta, g) with the decay in g where it is ``coupled``, as in torch.optim's SGD and Adam, else in theta."""
        if self.coupled:
            return theta, functional.coupled_decay(g, theta, self.weight_decay)
        return functional.decay(theta, self.lr, self.weight_decay), g

    def factor(self, step: int, state: Any) -> Tensor:
        """Elementwise factor from g (or m) to the move after a step, in units of lr."""
        return torch.ones(())

    def _initial(self, name: str, theta: Tensor) -> Tensor | None:
        if name in self.COUNTERS:
            return torch.zeros((), dtype=torch.int64, device=theta.device)
        return torch.full_like(theta, self.INITIAL.get(name, 0.0)) if name in self.kept else None
