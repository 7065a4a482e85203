r"""Rules with a diagonal curvature h: HELENE, Sophia, Newton, HiZOO. When h is estimated and how it is read is here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from helene import functional
from helene.evaluation.curvature import NONE, SPSA, Source, source_of
from helene.inputs import numeric
from helene.rules.base import Rule, Scalar
from helene.rules.floors import Floor

CURVATURE = "curvature"  # the name of h among the states


class HeleneState(NamedTuple):
    """m, and h where one is kept."""

    momentum: Tensor
    curvature: Tensor | None


class SophiaState(NamedTuple):
    """m, h where one is kept, and how many coordinates the clip has held back so far."""

    momentum: Tensor
    curvature: Tensor | None
    clipped: Tensor


class CurvatureState(NamedTuple):
    """h."""

    curvature: Tensor


@dataclass(frozen=True, kw_only=True)
class CurvatureRule(Rule):
    r"""h ← beta2 h + (1 − beta2) ĥ at t = first_estimate and every ``interval`` steps from there; h_0 = 0.

    Attributes:
        curvature: Where ĥ comes from: a name or an object of `helene.evaluation.curvature`.
        batch_size: B of A-GNB, the number of examples in the minibatch; only the sources that use it need it.
        beta2: EMA of h, in [0, 1).
        interval: Steps between estimates (k), >= 1.
        bias_correction: Whether h is read as h / (1 − beta2ⁿ) after n estimates, which removes the pull of h_0 = 0.
        first_estimate: Step of the first estimate, >= 1.
    """

    SHARED: ClassVar[tuple[str, ...]] = (CURVATURE, "batch_size", "interval", "first_estimate")

    curvature: Source = SPSA
    batch_size: Any = None
    beta2: float = 0.99
    interval: int = 10
    bias_correction: bool = False
    first_estimate: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, CURVATURE, source_of(self.curvature))
        numeric.fraction(self.beta2, "beta2")
        for name in ("interval", "first_estimate"):
            numeric.whole(getattr(self, name), name, 1, 1 << 32, "10 is usual for interval, 1 for first_estimate")
        numeric.one_of(self.bias_correction, "bias_correction", (True, False))
        size = self.batch_size
        is_size = isinstance(size, Tensor) or (isinstance(size, int) and not isinstance(size, bool) and size >= 1)
        if self.curvature.uses_batch_size and not is_size:
            raise ValueError(f"batch_size must be the number of examples in a minibatch, 1 or above, got {size!r}")

    @property
    def kept(self) -> tuple[str, ...]:
        """See `Rule`: h only where there is a source."""
        return tuple(name for name in self.State._fields if name != CURVATURE or self.curvature is not NONE)

    def estimates_at(self, step: int) -> bool:
        """Whether h is estimated at a step."""
        return self.curvature is not NONE and functional.is_curvature_step(step, self.interval, self.first_estimate)

    def last_estimate(self, step: int) -> int:
        """The last step up to this one that estimates h, 0 if there is none."""
        if self.curvature is NONE or step < self.first_estimate:
            return 0
        return step - (step - self.first_estimate) % self.interval

    def estimate(self, step: int, g: Tensor) -> Tensor | None:
        """ĥ of A-GNB from the step's own g, None at the steps that estimate none."""
        return functional.a_gnb(g, self.batch_size) if self.estimates_at(step) else None

    def observe(self, state: Any, estimate: Tensor | None) -> Any:
        """The state with ĥ taken into h."""
        if estimate is None:
            return state
        return state._replace(curvature=functional.curvature_ema(state.curvature, estimate, self.beta2))

    def correction(self, step: int) -> float:
        """What h is multiplied by where it is read."""
        last = self.last_estimate(step)
        if not self.bias_correction or not last:
            return 1.0
        return functional.bias_correction(self.beta2, (last - self.first_estimate) // self.interval + 1)

    def read(self, step: int, state: Any, like: Tensor) -> Tensor:
        """h as a step reads it, 0 where none is kept."""
        if state.curvature is None:
            return like.new_zeros(())
        correction = self.correction(step)
        return state.curvature if correction == 1.0 else state.curvature * correction


@dataclass(frozen=True, kw_only=True)
class HeleneRule(CurvatureRule):
    """Lines 7, 10, 14 and 15 of Algorithm 1 of the paper.

    Attributes:
        anneal_horizon: T of Anneal, in steps, > 0.
        beta1: Momentum, in [0, 1).
        gamma: Scale of the curvature in the denominator, > 0.
        floor: λ_i, > 0, or a rule of `helene.rules.floors` that is yet to be asked for it.
        denominator_eps: Added to the denominator, >= 0.
    """

    State: ClassVar[type] = HeleneState

    anneal_horizon: float
    beta1: float = 0.9
    gamma: Scalar = 1.0
    floor: Scalar | Floor = 1.0
    denominator_eps: Scalar = 1e-12

    def __post_init__(self) -> None:
        super().__post_init__()
        numeric.fraction(self.beta1, "beta1")
        numeric.positive(
            self.anneal_horizon, "anneal_horizon", "the number of steps of the run, or math.inf for no anneal"
        )
        numeric.positive(self.gamma, "gamma", "1 leaves h and the floor as they are")
        numeric.nonnegative(self.denominator_eps, "denominator_eps")
        if not callable(self.floor):
            numeric.positive(
                self.floor,
                "floor",
                "the paper's ablation uses 1 to 3. Give a number or a rule of helene.rules.floors, for all layers or a "
                "list with one for each",
            )
        elif self.floor_follows_h and (self.curvature is NONE or self.first_estimate != 1):
            raise ValueError(
                f"the floor {self.floor!r} looks at h from the first step on, so it needs a curvature source and "
                f"first_estimate=1; got {self.curvature.name!r} and {self.first_estimate}"
            )

    @property
    def floor_follows_h(self) -> bool:
        """Whether the floor is a rule that is asked anew after each estimate of h."""
        return callable(self.floor) and getattr(self.floor, "looks_at_h", True)

    def alpha(self, step: int) -> float:
        """The anneal of a step."""
        return functional.anneal(step, self.beta1, self.anneal_horizon)

    def update(
        self, step: int, theta: Tensor, g: Tensor, state: HeleneState, estimate: Tensor | None = None
    ) -> tuple[Tensor, HeleneState]:
        """See `Rule`."""
        state = self.observe(state, estimate)
        m = functional.momentum(state.momentum, g, self.beta1, self.alpha(step))
        theta, _ = self.decayed(theta, g)
        h = self.read(step, state, g)
        direction = functional.precondition(m, h, self.gamma, self._known_floor, self.denominator_eps)
        return functional.descend(theta, direction, self.lr), state._replace(momentum=m)

    def factor(self, step: int, state: HeleneState) -> Tensor:
        """See `Rule`."""
        h = self.read(step, state, torch.zeros(()))
        return functional.precondition(h.new_ones(()), h, self.gamma, self._known_floor, self.denominator_eps)

    @property
    def _known_floor(self) -> Scalar:
        if callable(self.floor):
            raise ValueError(f"the floor is still the rule {self.floor!r}; dataclasses.replace it by its number first")
        return self.floor


@dataclass(frozen=True, kw_only=True)
class SophiaRule(CurvatureRule):
    """Sophia (Liu et al. 2023, algorithm 3): the update is clipped, where HELENE floors the curvature.

    m ← beta1 m + (1 − beta1) g,  theta ← theta − lr · weight_decay · theta,
    theta ← theta − lr · clip(m / max(gamma h, denominator_eps), clip)

    Attributes:
        beta1: EMA of g, in [0, 1).
        gamma: Scale of h in the denominator, > 0.
        clip: Bound on an element of the update in units of lr, > 0.
        denominator_eps: Least denominator, > 0.
    """

    State: ClassVar[type] = SophiaState
    COUNTERS: ClassVar[tuple[str, ...]] = ("clipped",)

    beta1: Scalar = 0.96
    gamma: Scalar = 0.05
    clip: float = 1.0
    denominator_eps: Scalar = 1e-12

    def __post_init__(self) -> None:
        super().__post_init__()
        numeric.fraction(self.beta1, "beta1")
        numeric.positive(self.gamma, "gamma", "Sophia's are 0.01 to 0.05")
        numeric.positive(self.clip, "clip", "Sophia's is 1")
        numeric.positive(self.denominator_eps, "denominator_eps", "Sophia's is 1e-12")

    def update(
        self, step: int, theta: Tensor, g: Tensor, state: SophiaState, estimate: Tensor | None = None
    ) -> tuple[Tensor, SophiaState]:
        """See `Rule`."""
        state = self.observe(state, estimate)
        m = functional.momentum(state.momentum, g, self.beta1, 1.0 - self.beta1)
        ratio = m / (self.gamma * self.read(step, state, g)).clamp_min(self.denominator_eps)
        theta, _ = self.decayed(theta, g)
        theta, clipped = functional.descend(theta, ratio.clamp(-self.clip, self.clip), self.lr), ratio.abs() > self.clip
        return theta, state._replace(momentum=m, clipped=state.clipped + clipped.sum())

    def factor(self, step: int, state: SophiaState) -> Tensor:
        """See `Rule`."""
        return 1.0 / (self.gamma * self.read(step, state, torch.zeros(()))).clamp_min(self.denominator_eps)


@dataclass(frozen=True, kw_only=True)
class NewtonRule(CurvatureRule):
    """theta ← theta − lr · g / (h + denominator_eps): the diagonal Newton step without a floor, decay decoupled."""

    State: ClassVar[type] = CurvatureState

    interval: int = 1
    denominator_eps: Scalar = 1e-12

    def __post_init__(self) -> None:
        super().__post_init__()
        numeric.nonnegative(self.denominator_eps, "denominator_eps")
        if self.curvature is NONE:
            raise ValueError("curvature='none' leaves ZONewton nothing to divide by; MeZO is the method without h")

    def update(
        self, step: int, theta: Tensor, g: Tensor, state: CurvatureState, estimate: Tensor | None = None
    ) -> tuple[Tensor, CurvatureState]:
        """See `Rule`."""
        state = self.observe(state, estimate)
        theta, g = self.decayed(theta, g)
        return functional.descend(theta, g / (self.read(step, state, g) + self.denominator_eps), self.lr), state

    def factor(self, step: int, state: CurvatureState) -> Tensor:
        """See `Rule`."""
        return 1.0 / (self.read(step, state, torch.zeros(())) + self.denominator_eps)


@dataclass(frozen=True, kw_only=True)
class HiZOORule(Rule):
    """HiZOO (Zhao et al. 2024), h the diagonal of Σ⁻¹ and Σ^½ the scale of its probes.

    theta ← theta − lr (g / √h + weight_decay · theta),  g = c z,  c along z / √h;  with ĥ = z² · `second_difference`,
    h ← (1 − smooth) h + smooth · ĥ h,  ``smooth`` in [0, 1). The step uses the h from before it.
    """

    coupled: ClassVar[bool] = True
    State: ClassVar[type] = CurvatureState
    INITIAL: ClassVar[Mapping[str, float]] = {CURVATURE: 1.0}

    smooth: Scalar = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        numeric.fraction(self.smooth, "smooth")

    def update(
        self, step: int, theta: Tensor, g: Tensor, state: CurvatureState, estimate: Tensor | None = None
    ) -> tuple[Tensor, CurvatureState]:
        """See `Rule`."""
        assert estimate is not None
        theta, direction = self.decayed(theta, g / state.curvature.sqrt())
        h = functional.curvature_ema(state.curvature, estimate * state.curvature, 1.0 - self.smooth)
        return functional.descend(theta, direction, self.lr), CurvatureState(h)

    def factor(self, step: int, state: CurvatureState) -> Tensor:
        """See `Rule`."""
        return state.curvature.rsqrt()
