"""Cases that set everything at once: a path that leaves one thing out makes another run.

So one run on a slow path stands for all of a method's options, if each of them shows: `alone` tells.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tests.paths.cases import Case, Event, halving
from tests.paths.fuzz import WHOLE
from tests.paths.table import BASE, OTHER, base, defaults_of

# Left as they are: no kernel takes others, and signs make h one number, which floors then say nothing to.
PAIR_ONLY = "num_directions", "two_sided", "distribution", "direction_per_layer", "curvature"
OWN = {"rounding", "state_dtype"}  # groups must agree in them


def all_at_first(method: str) -> Case:
    """Everything set when the optimizer is made, every second thing in one group alone; 8-bit state."""
    case, options, own = base(method), dict(BASE[method]), dict[str, Any]()
    for i, option in enumerate(o for o in sorted(defaults_of(method)) if o not in (*PAIR_ONLY, "rounding", "lr")):
        value = OTHER[option][1 if option == "state_dtype" else 0]
        if i % 2 and option not in WHOLE and option not in OWN:
            own[option] = value
        else:
            options[option] = value
    return replace(case, options={**options, "lr": halving}, groups=(own, {}))


def all_later(method: str) -> Case:
    """Everything set while the run goes on, every second thing in one group alone; float16, rounded stochastically."""
    case, events = base(method), []
    given = {**case.options, "rounding": "stochastic"}
    for i, option in enumerate(o for o in sorted(defaults_of(method)) if o not in (*PAIR_ONLY, *OWN, "first_estimate")):
        group = 0 if i % 2 and option not in WHOLE else None
        events.append(Event(4 + i % 3, "set", (group, option, OTHER[option][0])))
    events.sort(key=lambda e: e.step)
    return replace(case, options=given, dtype="float16", events=tuple(events))


def disturbed(method: str) -> Case:
    """Parameters frozen and unfrozen, state saved and loaded in the same and another optimizer; dtypes by turns."""
    events = (
        Event(3, "unfreeze", ("gain",)),
        Event(5, "reload", ("same",)),
        Event(7, "freeze", ("mix",)),
        Event(9, "unfreeze", ("mix",)),
        Event(10, "reload", ("itself",)),
        Event(11, "reload", ("bare",)),
    )
    case = replace(base(method), frozen=("gain",), events=events)
    dtype = ("float32", "bfloat16", "float64", "float16")[list(BASE).index(method) % 4]
    narrow = {"rounding": "stochastic", "state_dtype": "8bit"} if dtype == "bfloat16" else {}
    return replace(case, dtype=dtype, options={**case.options, **narrow})


def left_out(case: Case) -> Iterator[tuple[str, Case]]:
    """Each option with the case that leaves it as `BASE` has it, each event with the case that has none of it."""
    for option in sorted(set(case.asked) & {*OTHER}):
        options = {k: v for k, v in case.options.items() if k != option}
        if option in BASE[case.method]:
            options[option] = BASE[case.method][option]
        groups = tuple({k: v for k, v in g.items() if k != option} for g in case.groups)
        events = tuple(e for e in case.events if e.kind != "set" or e.what[1] != option)
        less = replace(case, options=options, groups=groups, events=events)
        if less != case:
            yield option, less
    for event in case.events:
        if event.kind in ("freeze", "unfreeze"):
            yield f"{event.kind} at {event.step}", replace(case, events=tuple(e for e in case.events if e is not event))
