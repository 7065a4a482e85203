"""A search for counterexamples over a Hypothesis strategy, against several statements and their false twins at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import SearchStrategy

#: ``--hypothesis-profile=deep`` looks at this many times more instances, with fresh seeds.
DEEP_FACTOR = 100

Predicate = Callable[[Any], bool]


@dataclass
class Survey:
    """What a search found.

    Attributes:
        looked: Number of instances.
        against: For each statement that failed somewhere, the first instance.
        fallen: For each false twin that fell, the number of the first instance against it.
    """

    looked: int = 0
    against: dict[str, Any] = field(default_factory=dict)
    fallen: dict[str, int] = field(default_factory=dict)


def survey(
    strategy: SearchStrategy[Any],
    statements: Mapping[str, Predicate],
    twins: Mapping[str, Predicate],
    num_examples: int = 300,
) -> Survey:
    """Looks at every instance for every statement, and for every twin that has not fallen yet.

    A twin is a statement made false: a constant sharpened, a hypothesis dropped. Where all twins fall, the same search
    would have found such an error in a statement; that is what its silence is worth.
    """
    found = Survey()
    deep = settings.get_current_profile_name() == "deep"

    @settings(
        max_examples=num_examples * (DEEP_FACTOR if deep else 1),
        derandomize=not deep,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        verbosity=hypothesis.Verbosity.quiet,
    )
    @given(strategy)
    def look(instance: Any) -> None:
        found.looked += 1
        for name, holds in statements.items():
            if name not in found.against and not holds(instance):
                found.against[name] = instance
        for name, holds in twins.items():
            if name not in found.fallen and not holds(instance):
                found.fallen[name] = found.looked

    look()
    return found
