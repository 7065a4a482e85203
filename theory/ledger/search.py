"""Looking for a counterexample, and showing that the looking would have found one.

A twin is a statement made false: a constant sharpened past the best one attained, a hypothesis dropped. Where the twin
falls, the same search would have found such an error in the statement; that is what its silence is worth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from theory.ledger.claim import Claim, Search
from theory.ledger.constants import named_by, needed, plain, values_of
from theory.ledger.exact import related

#: The profile ``deep`` looks at this many times more instances, with fresh seeds.
DEEP_FACTOR = 100
SEED = 2024

Predicate = Callable[[Any], bool]


class _Enough(Exception):
    """Ends a walk early."""


def walk(strategy: SearchStrategy[Any], visit: Callable[[Any], bool], num_examples: int) -> None:
    """Visits instances of a strategy until ``visit`` returns True or there are ``num_examples``; nothing is shrunk.

    The same instances in every run, however the caller's source is worded, but for ``--hypothesis-profile=deep``.
    """
    deep = settings.get_current_profile_name() == "deep"

    @settings(
        max_examples=num_examples * (DEEP_FACTOR if deep else 1),
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        verbosity=hypothesis.Verbosity.quiet,
    )
    @given(strategy)
    def look(instance: Any) -> None:
        if visit(instance):
            raise _Enough

    try:
        (look if deep else seed(SEED)(look))()
    except _Enough:
        pass


def counterexample(
    sides: Callable[[Any], tuple[Any, Any]],
    relation: Any,
    *,
    strategy: SearchStrategy[Any] | None = None,
    cases: Sequence[Any] | None = None,
    num_examples: int = 200,
    enough: Callable[[Any], bool] | None = None,
) -> tuple[Any, int]:
    """The first instance found where ``lhs relation rhs`` is false, or None, and how many were looked at.

    Where ``enough`` is True of an instance it is the last.

    Raises:
        ValueError: If neither or both of strategy and cases are given, or there is no case.
    """
    if (strategy is None) == (cases is None):
        raise ValueError("give a strategy or a list of cases, one of the two")
    looked, found = 0, None

    def falsifies(instance: Any) -> bool:
        nonlocal looked, found
        looked += 1
        lhs, rhs = sides(instance)
        if related(lhs, relation, rhs):
            return enough is not None and enough(instance)
        found = instance
        return True

    if strategy is not None:
        walk(strategy, falsifies, num_examples)
    elif not cases:
        raise ValueError("no case to look at")
    else:
        any(map(falsifies, cases))
    return found, looked


@dataclass(frozen=True)
class Power:
    """A false twin that a search refuted: a constant's false value (empty name: a hypothesis dropped)."""

    constant: str
    claimed: str
    false: str
    factor: float | None
    instance: int

    @property
    def text(self) -> str:
        """What the search could do, in words."""
        if not self.constant:
            return f"without {self.false} the statement falls at instance {self.instance}"
        within = f", within a factor {self.factor:.4g}" if self.factor is not None else ""
        return f"{self.false} for {self.claimed} falls at instance {self.instance}{within}"


def run(search: Search, claim: Claim) -> tuple[bool, str, tuple[Power, ...]]:
    """Whether the search finds nothing against the statement and something against each false twin; the numbers."""
    seen: list[Any] = []
    fallen: dict[str, int] = {}
    short = search.least is not None and search.cases is None  # cases are gone through in full
    enough = _enough(search, claim, fallen) if short else None
    found, looked = _look(search, values_of(claim), seen, enough)
    if not callable(search.strategy) and settings.get_current_profile_name() != "deep":
        search = replace(search, strategy=None, cases=seen)  # the same are drawn for each constant
    if found is not None:
        return False, f"counterexample after {looked}: {found}", ()
    powers = []
    for name in sorted(constants_of(search, claim)):
        one = claim.constants[name]
        caught, tries = (True, fallen[name]) if name in fallen else _look(search, values_of(claim, name))
        if caught is None:
            return False, f"no power: {plain(one.false)} for {plain(one.claimed)} («{name}») survived {tries}", ()
        factor = None if one.factor is None else float(one.factor)
        powers.append(Power(name, plain(one.claimed), plain(one.false), factor, tries))
    if search.twin is not None:
        twin = replace(search, strategy=search.twin.strategy, cases=search.twin.cases)
        caught, tries = _look(twin, values_of(claim))
        if caught is None:
            return False, f"no power: the false twin survived {tries} instances ({search.twin.text})", ()
        powers.append(Power("", "", search.twin.text, None, tries))
    if not powers:
        return False, "no power: there is no false twin", ()
    return True, f"{looked} instances, none against; " + "; ".join(power.text for power in powers), tuple(powers)


def constants_of(search: Search, claim: Claim) -> set[str]:
    """The constants that the search takes, by itself or in a formula."""
    names = set(named_by(search.sides, values_of(claim)))
    if callable(search.strategy):
        names |= set(named_by(search.strategy, values_of(claim)))
    return needed(claim, names)


def _enough(search: Search, claim: Claim, fallen: dict[str, int]) -> Callable[[Any], bool]:
    """Whether ``least`` instances were looked at and each false constant fell among as many; notes where it fell."""
    least, looked = search.least or 0, 0
    left = {name: named_by(search.sides, values_of(claim, name)) for name in constants_of(search, claim)}
    if callable(search.strategy):  # a false value draws other instances
        for name in tuple(left):
            caught, tries = _look(search, values_of(claim, name))
            least = max(least, tries)
            if caught is not None:
                fallen[name] = tries
        left = {}

    def enough(instance: Any) -> bool:
        nonlocal looked
        looked += 1
        for name, taken in tuple(left.items()):
            lhs, rhs = search.sides(instance, **taken)
            if not related(lhs, search.relation, rhs):
                fallen[name] = looked
                del left[name]
        return not left and looked >= least

    return enough


def _look(
    search: Search,
    values: Mapping[str, Any],
    seen: list[Any] | None = None,
    enough: Callable[[Any], bool] | None = None,
) -> tuple[Any, int]:
    given = named_by(search.sides, values)

    def sides(instance: Any) -> tuple[Any, Any]:
        if seen is not None:
            seen.append(instance)
        return search.sides(instance, **given)

    strategy = search.strategy
    if callable(strategy) and not isinstance(strategy, SearchStrategy):
        strategy = strategy(**named_by(strategy, values))
    return counterexample(
        sides,
        search.relation,
        strategy=strategy,
        cases=search.cases,
        num_examples=search.num_examples,
        enough=enough,
    )


@dataclass
class Survey:
    """What a search for several statements at once found.

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
    """Looks at every instance for every statement, and for every twin that has not fallen yet."""
    found = Survey()

    def look(instance: Any) -> bool:
        found.looked += 1
        for name, holds in statements.items():
            if name not in found.against and not holds(instance):
                found.against[name] = instance
        for name, holds in twins.items():
            if name not in found.fallen and not holds(instance):
                found.fallen[name] = found.looked
        return False

    walk(strategy, look, num_examples)
    return found
