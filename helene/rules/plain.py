"""Rules without a curvature: SGD, heavy ball, signs, Adam, Lion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from helene import functional, numeric
from helene.rules.base import NoState, Rule, Scalar


class MomentumState(NamedTuple):
    """m, None where momentum is off."""

    momentum: Tensor | None


class AdamState(NamedTuple):
    """m and v."""

    momentum: Tensor
    second_moment: Tensor


@dataclass(frozen=True, kw_only=True)
class SGDRule(Rule):
    """theta ← theta − lr (g + weight_decay · theta), see `functional.sgd_step`."""

    def update(
        self, step: int, theta: Tensor, g: Tensor, state: NoState, estimate: Tensor | None = None
    ) -> tuple[Tensor, NoState]:
        """See `Rule`."""
        return functional.sgd_step(theta, g, lr=self.lr, weight_decay=self.weight_decay), state


@dataclass(frozen=True, kw_only=True)
class DecayLastRule(Rule):
    """theta ← theta − lr g, then theta ← theta − lr · weight_decay · theta."""

    def update(
        self, step: int, theta: Tensor, g: Tensor, state: NoState, estimate: Tensor | None = None
    ) -> tuple[Tensor, NoState]:
        """See `Rule`."""
        return functional.decay(functional.descend(theta, g, self.lr), self.lr, self.weight_decay), state


@dataclass(frozen=True, kw_only=True)
class SignRule(Rule):
    """theta ← theta − lr · sign(g), decay decoupled, see `functional.sign_step`."""

    def update(
        self, step: int, theta: Tensor, g: Tensor, state: NoState, estimate: Tensor | None = None
    ) -> tuple[Tensor, NoState]:
        """See `Rule`."""
        return functional.sign_step(theta, g, lr=self.lr, weight_decay=self.weight_decay), state


@dataclass(frozen=True, kw_only=True)
class HeavyBallRule(Rule):
    """m ← momentum · m + g, theta ← theta − lr m, decay decoupled, see `functional.momentum_step`."""

    State: ClassVar[type] = MomentumState
    coupled: ClassVar[bool] = False

    momentum: Scalar = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        numeric.fraction(self.momentum, "momentum")

    def update(
        self, step: int, theta: Tensor, g: Tensor, state: MomentumState, estimate: Tensor | None = None
    ) -> tuple[Tensor, MomentumState]:
        """See `Rule`."""
        if state.momentum is None:
            return functional.sgd_step(theta, g, lr=self.lr, weight_decay=self.weight_decay), state
        theta, m = functional.momentum_step(
            theta,
            g,
            state.momentum,
            lr=self.lr,
            beta1=self.momentum,
            weight_decay=self.weight_decay,
            coupled=self.coupled,
        )
        return theta, MomentumState(m)


@dataclass(frozen=True, kw_only=True)
class TorchSGDRule(HeavyBallRule):
    """torch.optim.SGD: the decay is part of g, and no m is kept without momentum."""

    coupled: ClassVar[bool] = True

    momentum: Scalar = 0.0

    @property
    def kept(self) -> tuple[str, ...]:
        """See `Rule`."""
        return ("momentum",) if self.momentum else ()


@dataclass(frozen=True, kw_only=True)
class AdamRule(Rule):
    """Adam, the decay part of g, see `functional.adam_step`."""

    State: ClassVar[type] = AdamState
    coupled: ClassVar[bool] = True

    beta1: float = 0.9
    beta2: float = 0.999
    denominator_eps: Scalar = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        numeric.fraction(self.beta1, "beta1")
        numeric.fraction(self.beta2, "beta2")
        numeric.nonnegative(self.denominator_eps, "denominator_eps")

    def update(
        self, step: int, theta: Tensor, g: Tensor, state: AdamState, estimate: Tensor | None = None
    ) -> tuple[Tensor, AdamState]:
        """See `Rule`."""
        theta, m, v = functional.adam_step(
            theta,
            g,
            state.momentum,
            state.second_moment,
            lr=self.lr,
            beta1=self.beta1,
            beta2=self.beta2,
            denominator_eps=self.denominator_eps,
            step=step,
            weight_decay=self.weight_decay,
            coupled=self.coupled,
        )
        return theta, AdamState(m, v)

    def factor(self, step: int, state: AdamState) -> Tensor:
        """See `Rule`."""
        step = max(1, step)
        root = (state.second_moment * functional.bias_correction(self.beta2, step)).sqrt()
        return functional.bias_correction(self.beta1, step) / (root + self.denominator_eps)


@dataclass(frozen=True, kw_only=True)
class AdamWRule(AdamRule):
    """`AdamRule` with decoupled decay."""

    coupled: ClassVar[bool] = False


@dataclass(frozen=True, kw_only=True)
class LionRule(Rule):
    """Lion, see `functional.lion_step`."""

    State: ClassVar[type] = MomentumState

    beta1: Scalar = 0.9
    beta2: Scalar = 0.99

    def __post_init__(self) -> None:
        super().__post_init__()
        numeric.fraction(self.beta1, "beta1")
        numeric.fraction(self.beta2, "beta2")

    def update(
        self, step: int, theta: Tensor, g: Tensor, state: MomentumState, estimate: Tensor | None = None
    ) -> tuple[Tensor, MomentumState]:
        """See `Rule`."""
        assert state.momentum is not None
        theta, m = functional.lion_step(
            theta,
            g,
            state.momentum,
            lr=self.lr,
            beta1=self.beta1,
            beta2=self.beta2,
            weight_decay=self.weight_decay,
        )
        return theta, MomentumState(m)
