"""The table: every option of every method, at the constructor, in a group, and set while the run goes on.

A method is run with its entry's arguments, or with a line of `TUNED`; a new option is set to half of its default, or to
what a line of `OTHER` says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

import helene
from helene.methods import ENTRIES
from tests.paths.cases import Case, Event, half_of_the_largest, halving, make_model, make_optimizer

CURVED: dict[str, Any] = {"batch_size": 400, "beta2": 0.5, "interval": 3}
TUNED: dict[str, dict[str, Any]] = {  # where what an option does shows within twelve steps
    "Helene": {"lr": 0.004, "anneal_horizon": 6.0, "floor": 0.5, "beta1": 0.7, **CURVED},
    "MeZO": {"lr": 0.02},
    "ZOMomentum": {"lr": 0.005, "momentum": 0.7},
    "ZOConservative": {"lr": 0.02},
    "ZOSign": {"lr": 0.01},
    "ZOScalarSign": {"lr": 0.01},
    "ZOAdam": {"lr": 0.01, "beta2": 0.9},
    "ZOAdamW": {"lr": 0.01, "beta2": 0.9},
    "ZOLion": {"lr": 0.005, "beta2": 0.5},
    "ZOSophia": {"lr": 0.01, "gamma": 0.5, "clip": 0.5, **CURVED},
    "ZONewton": {"lr": 0.02, "denominator_eps": 0.3, **CURVED},
    "ForwardGrad": {"lr": 0.02},
    "HiZOO": {"lr": 0.01, "smooth": 0.2},
    "FZOO": {"lr": 0.01, "num_directions": 3},
    "GroupedMeZO": {"lr": 0.01, "momentum": 0.5},
    "SGD": {"lr": 0.1, "momentum": 0.5},
    "Adam": {"lr": 0.01, "beta2": 0.9},
    "AdamW": {"lr": 0.01, "beta2": 0.9},
    "Lion": {"lr": 0.005, "beta2": 0.5},
    "SophiaG": {"lr": 0.01, "gamma": 0.05, "clip": 0.5, **CURVED},
}
OTHERS = [entry for entry in ENTRIES if entry.cls not in TUNED]
BASE = TUNED | {e.cls: {"lr": 0.01, **e.fixed, **e.contract.arguments} for e in OTHERS}
for _name, _options in BASE.items():
    if not Case(_name).first_order and _name != "ForwardGrad":
        _options["eps"] = 0.05
FUSED = "Helene", "MeZO", "ZOMomentum", "ZOConservative", "ZOSign", "ZOScalarSign", "ZOAdam", "ZOAdamW", "ZOLion"

FLOORS = helene.MeanFloor(3.0), helene.QuantileFloor(0.9), helene.RadiusFloor(9.0), half_of_the_largest
OTHER: dict[str, tuple[Any, ...]] = {
    "lr": (0.0017, halving),
    "weight_decay": (0.5,),
    "seed": (11, 2**63 + 5),
    "rounding": ("stochastic",),
    "state_dtype": ("bfloat16", "8bit", torch.bfloat16),
    "eps": (0.4,),
    "num_directions": (2,),
    "two_sided": (False,),
    "distribution": ("rademacher", "sphere"),
    "direction_per_layer": (True,),
    "anneal_horizon": (2.0, float("inf")),
    "batch_size": (130,),
    "beta1": (0.4,),
    "beta2": (0.8,),
    "interval": (2,),
    "gamma": (0.3,),
    "floor": (0.15, *FLOORS),
    "denominator_eps": (0.6,),
    "curvature": ("spsa_own_batch", "backprop", "sampled_labels", "none"),
    "bias_correction": (True,),
    "first_estimate": (2,),
    "momentum": (0.3,),
    "clip": (0.1,),
    "smooth": (0.5,),
    "groups": (2,),
    "rank": (2,),
}
PLACES = "argument", "group", "later", "later in one"
# By nature without an effect on the trajectory, and why that is no fault.
INERT: dict[tuple[str, str], str] = {
    (e.cls, "state_dtype"): "it keeps no state" for e in ENTRIES if not e.state and "momentum" not in BASE[e.cls]
}
NOT_HYPER = "params", "param_names", "step", "model", "differentiable"


@dataclass(frozen=True)
class Row:
    """A case that sets an option, and the one that does not."""

    case: Case
    without: Case
    option: str
    place: str

    def __str__(self) -> str:
        value = self.case.options.get(self.option)
        if self.place == "group":
            value = self.case.groups[-1][self.option]
        elif self.place.startswith("later"):
            value = self.case.events[0].what[2]
        return f"{self.case.method}-{self.option}={getattr(value, '__name__', value)}-{self.place}".replace(" ", "_")


def base(method: str, model: str = "odd") -> Case:
    return Case(method, BASE[method], model, groups=({},) * (3 if model == "tied" else 2))


def defaults_of(method: str) -> dict[str, Any]:
    """The hyper-parameters that a method has, as it says itself."""
    found = make_optimizer(case := base(method), make_model(case), bare=True).defaults
    return {key: value for key, value in found.items() if key not in NOT_HYPER}


for _entry in OTHERS:
    OTHER |= {option: (value / 2,) for option, value in defaults_of(_entry.cls).items() if option not in OTHER}


def rows() -> Iterator[Row]:
    """Every option of every method at every place; models take turns."""
    turn = 0
    for method in BASE:
        for option, default in sorted(defaults_of(method).items()):
            for value in values(method, option):
                for place in PLACES if value != default else ():
                    turn += 1
                    yield row(where_it_acts(base(method, ("odd", "tied")[turn % 2]), option), option, value, place)


def values(method: str, option: str) -> tuple[Any, ...]:
    if option == "curvature" and Case(method).first_order:
        return ("backprop",)
    return OTHER[option]


def where_it_acts(case: Case, option: str) -> Case:
    """What the option needs beside it."""
    if option == "rounding":
        return replace(case, dtype="float16")
    if option == "seed" and case.first_order:
        return replace(case, options={**case.options, "state_dtype": "bfloat16"})
    if option == "batch_size" and case.method == "SophiaG":
        return replace(case, options={**case.options, "curvature": "backprop"})
    return case


def row(case: Case, option: str, value: Any, place: str) -> Row:
    if place == "argument":
        return Row(replace(case, options={**case.options, option: value}), case, option, place)
    if place == "group":
        groups = (*case.groups[:-1], {**case.groups[-1], option: value})
        return Row(replace(case, groups=groups), case, option, place)
    event = Event(5, "set", (None if place == "later" else 1, option, value))
    return Row(replace(case, events=(*case.events, event)), case, option, place)
