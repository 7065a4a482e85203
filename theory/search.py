"""Looking for a counterexample, and showing that the looking would have found one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import SearchStrategy

from theory.claim import Search
from theory.exact import related

#: The profile ``deep`` looks at this many times more instances, with fresh seeds.
DEEP_FACTOR = 100


class _Found(Exception):
    """Carries a counterexample out of Hypothesis."""

    def __init__(self, instance: Any) -> None:
        super().__init__("counterexample")
        self.instance = instance


def is_deep() -> bool:
    """Whether ``--hypothesis-profile=deep`` is on."""
    return settings.get_current_profile_name() == "deep"


def counterexample(
    sides: Any,
    relation: Any,
    *,
    strategy: SearchStrategy[Any] | None = None,
    cases: Sequence[Any] | None = None,
    num_examples: int = 200,
) -> tuple[Any, int]:
    """The first instance found where ``lhs relation rhs`` is false, or None, and how many were looked at.

    Raises:
        ValueError: If neither or both of strategy and cases are given, or there is no case.
    """
    if (strategy is None) == (cases is None):
        raise ValueError("give a strategy or a list of cases, one of the two")
    looked = 0
    if cases is not None:
        if not cases:
            raise ValueError("no case to look at")
        for instance in cases:
            looked += 1
            if not related(*_ordered(sides(instance), relation)):
                return instance, looked
        return None, looked

    assert strategy is not None
    deep = is_deep()

    @settings(
        max_examples=num_examples * (DEEP_FACTOR if deep else 1),
        derandomize=not deep,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
        verbosity=hypothesis.Verbosity.quiet,
    )
    @given(strategy)
    def probe(instance: Any) -> None:
        nonlocal looked
        looked += 1
        if not related(*_ordered(sides(instance), relation)):
            raise _Found(instance)

    try:
        probe()
    except _Found as found:
        return found.instance, looked
    return None, looked


def _ordered(pair: tuple[Any, Any], relation: Any) -> tuple[Any, Any, Any]:
    return pair[0], relation, pair[1]


def run(search: Search) -> tuple[bool, str]:
    """Whether the search finds nothing against the statement and something against its false twin; the numbers."""
    found, looked = counterexample(
        search.sides, search.relation, strategy=search.strategy, cases=search.cases, num_examples=search.num_examples
    )
    if found is not None:
        return False, f"counterexample after {looked}: {found}"
    twin = search.twin
    own = twin.strategy is not None or twin.cases is not None
    caught, tries = counterexample(
        twin.sides or search.sides,
        twin.relation or search.relation,
        strategy=twin.strategy if own else search.strategy,
        cases=twin.cases if own else search.cases,
        num_examples=search.num_examples,
    )
    if caught is None:
        return False, f"no power: the false twin survived {tries} instances ({twin.text})"
    return True, f"{looked} instances, none against; the false twin falls at instance {tries}"
