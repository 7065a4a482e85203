"""Rules without a curvature: SGD, heavy ball, signs, Adam, Lion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from helene import functional
from helene.inputs import numeric
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
    """theta ← theta − lr (g + weight_decay · theta): with the SPSA gradient, MeZO's step (Malladi et al. 2023)."""

    coupled: ClassVar[bool] = True

    def update(
        self, step: int, theta: Tensor, g: Tensor, state: NoState, estimate: Tensor | None = None
    ) -> tuple[Tensor, NoState]:
        """See `Rule`."""
        theta, g = self.decayed(theta, g)
        return functional.descend(theta, g, self.lr), state


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
    """theta ← theta − lr · sign(g) for each element, decay decoupled (signSGD; ZO-signSGD, Liu et al. 2019)."""

    def update(
        self, step: int, theta: Tensor, g: Tensor, state: NoState, estimate: Tensor | None = None
    ) -> tuple[Tensor, NoState]:
        """See `Rule`."""
        theta, g = self.decayed(theta, g)
        return functional.descend(theta, g.sign(), self.lr), state


@dataclass(frozen=True, kw_only=True)
class HeavyBallRule(Rule):
    """m ← momentum · m + g, theta ← theta − lr m: heavy ball, decay decoupled."""

    State: ClassVar[type] = MomentumState

    momentum: Scalar = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        numeric.fraction(self.momentum, "momentum")

    def update(
        self, step: int, theta: Tensor, g: Tensor, state: MomentumState, estimate: Tensor | None = None
    ) -> tuple[Tensor, MomentumState]:
        """See `Rule`."""
        theta, g = self.decayed(theta, g)
        if state.momentum is None:
            return functional.descend(theta, g, self.lr), state
        m = functional.momentum(state.momentum, g, self.momentum)
        return functional.descend(theta, m, self.lr), MomentumState(m)


@dataclass(frozen=True, kw_only=True)
class TorchSGDRule(HeavyBallRule):
    """torch.optim.SGD: the decay is part of g, and no m is kept without momentum."""

    coupled: ClassVar[bool] = True

    momentum: Scalar = 0.0

    @property
    def kept(self) -> tuple[str, ...]:
        """See `Rule`."""
        return ("momentum",) if isinstance(self.momentum, Tensor) or self.momentum else ()


@dataclass(frozen=True, kw_only=True)
class AdamRule(Rule):
    """Adam (Kingma and Ba 2015, algorithm 1), the decay part of g.

    m ← beta1 m + (1 − beta1) g,  v ← beta2 v + (1 − beta2) g²,
    theta ← theta − lr · (m / (1 − beta1^t)) / (√(v / (1 − beta2^t)) + denominator_eps)
    """

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
        lr, scale = functional.adam_scales(self.lr, self.beta1, self.beta2, step)
        theta, g = self.decayed(theta, g)
        m = functional.momentum(state.momentum, g, self.beta1, 1.0 - self.beta1)
        v = functional.curvature_ema(state.second_moment, g * g, self.beta2)
        root = v.sqrt() * scale + self.denominator_eps
        return functional.descend(theta, m / root, lr), AdamState(m, v)

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
    """Lion (Chen et al. 2023, algorithm 2).

    theta ← theta − lr (sign(beta1 m + (1 − beta1) g) + weight_decay · theta), then m ← beta2 m + (1 − beta2) g.
    """

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
        theta, g = self.decayed(theta, g)
        direction = functional.momentum(state.momentum, g, self.beta1, 1.0 - self.beta1).sign()
        m = functional.momentum(state.momentum, g, self.beta2, 1.0 - self.beta2)
        return functional.descend(theta, direction, self.lr), MomentumState(m)
