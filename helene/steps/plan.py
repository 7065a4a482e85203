"""The plan of a step: all that any path has to know of an optimizer to make it, typed and frozen.

An optimizer is asked once a step for its plan (`helene.steps.base.Base.plan`). Torch's loop, the kernels, the
engine, data parallel steps and replay run from it; none reads a group's entries by a name of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from helene import noise
from helene.evaluation.curvature import Source
from helene.inputs import numeric
from helene.rules import CurvatureRule, HeleneRule, Rule
from helene.rules.storage import Storage

if TYPE_CHECKING:
    from helene.steps.measurement import Measurement

DISTRIBUTIONS = ("gaussian", "rademacher", "sphere")
MAX_DIRECTIONS = noise.STATE_DRAW - noise.CURVATURE_DRAW  # so that draws of the curvature stay below the state's


@dataclass(frozen=True, kw_only=True)
class Seeded:
    """What all layers of any method have in common.

    Attributes:
        seed: Of every random number, in [0, 2^64).
    """

    is_dense: ClassVar[Any] = False  # whether directions are of normals or signs, each for the whole model
    is_low_rank: ClassVar[bool] = False  # whether directions are `helene.evaluation.grouped.factors.Factors`

    seed: int = 0

    def __post_init__(self) -> None:
        numeric.whole(self.seed, "seed", 0, 1 << 64, "any such number will do")


@dataclass(frozen=True, kw_only=True)
class Directed(Seeded):
    """How many directions a step has, and their law; all that `ForwardGrad` asks."""

    num_directions: int = 1
    distribution: str = "gaussian"
    direction_per_layer: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        numeric.whole(self.num_directions, "num_directions", 1, MAX_DIRECTIONS, "1 is usual")
        numeric.one_of(self.distribution, "distribution", DISTRIBUTIONS)
        numeric.one_of(self.direction_per_layer, "direction_per_layer", (True, False))

    @property
    def is_dense(self) -> bool:
        """Whether each direction is for the whole model and its elements are independent: normals or signs."""
        return self.distribution != "sphere" and not self.direction_per_layer


@dataclass(frozen=True, kw_only=True)
class Probing(Directed):
    """How a zeroth-order method probes the loss, see `helene.steps.zeroth.ZerothOrder`."""

    eps: float = 1e-3
    two_sided: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        numeric.finite_positive(self.eps, "eps", "1e-3 is usual in float32")
        numeric.one_of(self.two_sided, "two_sided", (True, False))


class StepPlan(NamedTuple):
    """What one step does.

    Attributes:
        method: Name of the optimizer's class.
        step: Its number, the first is 1.
        probing: The seed, and how the loss is probed (a `Probing` for zeroth-order methods).
        measurement: What is evaluated, and the gradient estimate that follows.
        source: Where ĥ comes from, None at the steps that estimate none.
        rules: Hyper-parameters and update of each layer. A floor that follows h is a number but at the steps that
            estimate h, where it is asked between the two.
        storage: Of each layer.
        forwards: Forwards that the step makes, a backward counted as two.
    """

    method: str
    step: int
    probing: Seeded
    measurement: Measurement
    source: Source | None
    rules: tuple[Rule, ...]
    storage: tuple[Storage, ...]
    forwards: int

    @property
    def seed(self) -> int:
        """Of every random number."""
        return self.probing.seed

    @property
    def batch_size(self) -> Any:
        """B of A-GNB, None for methods without."""
        rule = self.rules[0]
        return rule.batch_size if isinstance(rule, CurvatureRule) else None

    @property
    def asks_floors(self) -> bool:
        """Whether floors are asked in this step, after h and before theta moves."""
        return any(isinstance(rule, HeleneRule) and callable(rule.floor) for rule in self.rules)

    @property
    def structure(self) -> tuple[Any, ...]:
        """What a captured step depends on beside numbers that change from step to step."""
        probing = {
            name: getattr(self.probing, name) for name in names(type(self.probing)) if name not in ("seed", "eps")
        }
        curved = [rule.curvature for rule in self.rules if isinstance(rule, CurvatureRule)]
        decays = any(rule.weight_decay != 0 for rule in self.rules)
        kinds = [(type(rule), rule.kept) for rule in self.rules]
        return self.measurement, self.measurement.not_from_pairs(self), probing, kinds, curved, self.storage, decays

    def fingerprint(self) -> str:
        """Every number and name of the plan as text, equal on every machine."""
        told = [
            (name, type(value).__name__ if callable(value) else value)
            for described in (self.probing, *self.rules, *self.storage)
            for name, value in vars(described).items()
        ]
        return repr((self.method, self.step, told))

    def with_floors(self, floors: Mapping[int, float]) -> StepPlan:
        """The plan once the floors of some layers are known."""
        rules = tuple(
            replace(rule, floor=floors[i]) if i in floors else rule  # type: ignore[call-arg]
            for i, rule in enumerate(self.rules)
        )
        return self._replace(rules=rules)


def names(*kinds: Any) -> tuple[str, ...]:
    """The fields of descriptions."""
    return _names(kinds)


@functools.cache
def _names(kinds: tuple[Any, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(field.name for kind in kinds for field in fields(kind)))
