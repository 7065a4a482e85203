"""The methods by name, those of `helene.methods` and HELENE with a part changed: what the runs must tell each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any, cast

from torch import nn

from helene.methods import ENTRIES, Entry


@dataclass(frozen=True)
class Method:
    """One row's optimizer.

    Attributes:
        name: As in configs and commands.
        label: As on pages; the paper's name where it has one.
        cls: Name of the class in `helene.optimizers`.
        fixed: Hyper-parameters that make it this method.
        needs: Hyper-parameters that a run gives unless ``fixed`` has them: ``batch_size`` (B of A-GNB) and
            ``anneal_horizon`` (the run's steps).
        lr_ratio: See `helene.methods.Entry`.
    """

    name: str
    label: str
    cls: str
    fixed: Mapping[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    lr_ratio: float = 1.0


def _helene(name: str, label: str, lr_ratio: float = 0.1, **fixed: Any) -> Method:
    needs = ("anneal_horizon",) if fixed.get("curvature") == "none" else ("anneal_horizon", "batch_size")
    return Method(name, label, "Helene", fixed, needs, lr_ratio)


_LABELS = {"mezo-grouped": "Grouped MeZO, 1 group"}  # beside methods of the same class


def _of(entry: Entry) -> Method:
    return Method(entry.name, _LABELS.get(entry.name, entry.label), entry.cls, entry.fixed, entry.needs, entry.lr_ratio)


_ALL = (
    *(_of(entry) for entry in ENTRIES),
    # HELENE's parts, one left out or changed at a time, and what a gain must not be explained by.
    _helene("helene-no-curvature", "HELENE without h", curvature="none"),
    _helene("helene-no-anneal", "HELENE without anneal", anneal_horizon=math.inf),
    _helene("helene-no-momentum", "HELENE without momentum", beta1=0.0, lr_ratio=1.0),
    _helene("helene-corrected", "HELENE, h corrected for its bias", bias_correction=True),
    _helene("helene-own-batch", "HELENE, h from minibatches of its own", curvature="spsa_own_batch"),
    _helene("helene-backprop", "HELENE, h by backpropagation (Algorithm 2)", curvature="backprop"),
    _helene("helene-floor-0.9", "HELENE, floor 0.9", floor=0.9),
    _helene("helene-floor-2", "HELENE, floor 2", floor=2.0),
    _helene("helene-floor-3", "HELENE, floor 3", floor=3.0),
    Method("mezo-grouped-4", "Grouped MeZO, 4 groups", "GroupedMeZO", {"groups": 4}),
    Method("mezo-grouped-16", "Grouped MeZO, 16 groups", "GroupedMeZO", {"groups": 16}),
    Method("mezo-grouped-32", "Grouped MeZO, 32 groups", "GroupedMeZO", {"groups": 32}),
    _helene("helene-scalar-h", "HELENE, one h a layer (its largest)", floor="quantile:1"),
)
METHODS: Mapping[str, Method] = {method.name: method for method in _ALL}


def get_method(name: str) -> Method:
    """The method of that name.

    Raises:
        ValueError: If there is none.
    """
    if name not in METHODS:
        raise ValueError(f"there is no method {name!r}; there are {', '.join(METHODS)}")
    return METHODS[name]


@cache
def is_first_order(name: str) -> bool:
    """Whether the method needs gradients."""
    from helene.steps.first import FirstOrder

    return issubclass(_class(get_method(name)), FirstOrder)


def takes_eps(name: str) -> bool:
    """Whether the method probes at a radius."""
    from helene.steps.plan import names

    return "eps" in names(_class(get_method(name)).PROBING)


@cache
def takes_packed(name: str) -> bool:
    """Whether steps of a method may run on packed tokens: they are captured, and ask for no example's own loss."""
    return captured(name) and not takes_examples(name)


@cache
def takes_examples(name: str) -> bool:
    """Whether the method is told the loss of each example, not their mean."""
    from helene.steps.plan import names

    return name in METHODS and "groups" in names(_class(get_method(name)).PROBING)


@cache
def captured(name: str) -> bool:
    """Whether an engine captures what its steps evaluate: losses, a slope or a gradient."""
    from helene.optimizers import FZOO, ForwardGrad

    apart = issubclass(_class(get_method(name)), ForwardGrad | FZOO)
    return apart or is_first_order(name) or takes_examples(name) or takes_compiled(name)


@cache
def takes_compiled(name: str) -> bool:
    """Whether its captured forwards may run compiled blocks: those of pairs of losses."""
    from helene.engine.reasons import not_pairs

    return not not_pairs(_toy(name, {}).plan())


@cache
def takes_ranks(name: str) -> bool:
    """Whether an engine shares its steps over ranks: those of pairs of losses, or of groups."""
    return takes_examples(name) or takes_compiled(name)


@cache
def captured_pairs(name: str) -> int:
    """Pairs of forwards of a captured step that estimates no h: 3 where it needs 5 forwards, 0 without pairs."""
    plan = _toy(name, {}).plan()
    return -(-int(plan.measurement.forwards(plan.probing, 1)) // 2) if takes_compiled(name) else 0


@cache
def plain_share(name: str) -> float:
    """The share of an engine's steps of pairs whose update the host makes, since h is estimated apart."""
    from helene.engine.reasons import apart

    plan = _toy(name, {}).plan()
    return 1.0 / plan.rules[0].interval if takes_compiled(name) and apart(plan, ever=True) else 0.0


def forwards(name: str, hyper: Mapping[str, Any]) -> Callable[[int], int]:
    """How many forwards the method makes at a step (the first is 1), a backward counted as two.

    Args:
        name: Of the method.
        hyper: Hyper-parameters over the method's own.

    Raises:
        ValueError: If it depends on the number of layers.
    """
    if hyper.get("direction_per_layer"):
        raise ValueError("forwards with direction_per_layer depend on the model's layers; leave it out of hyper here")
    told = {key: value for key, value in hyper.items() if key != "model"}
    return cast(Callable[[int], int], _toy(name, told).forwards_at)


def _toy(name: str, hyper: Mapping[str, Any]) -> Any:
    """The method over two numbers, to be asked how it steps."""
    return build(name, nn.Linear(1, 1), {"lr": 1e-3, **hyper}, seed=0, batch_size=1, steps=1)


def build(name: str, module: nn.Module, hyper: Mapping[str, Any], *, seed: int, batch_size: int, steps: int) -> Any:
    """The optimizer of a run, each block of the model a layer.

    Args:
        name: Of the method.
        module: Parameters that require gradients are trained.
        hyper: Hyper-parameters, ``lr`` among them; they win over the method's own.
        seed: Of the directions.
        batch_size: Examples of a minibatch.
        steps: Of the run.

    Raises:
        ValueError: If a hyper-parameter is unknown or out of range.
    """
    from helene.inputs.layers import layer_groups

    method = get_method(name)
    run = {"batch_size": batch_size, "anneal_horizon": steps}
    arguments = {**{needed: run[needed] for needed in method.needs}, **method.fixed, **hyper}
    if isinstance(arguments.get("floor"), str):
        arguments["floor"] = floor_rule(arguments["floor"])
    if not is_first_order(name):
        arguments.setdefault("model", module)
    try:
        return _class(method)(layer_groups(module), seed=seed, **arguments)
    except TypeError as err:
        raise ValueError(f"method {name!r}: {err}") from err


FLOORS = {"quantile": "QuantileFloor", "mean": "MeanFloor", "radius": "RadiusFloor"}


def parse_floor(text: str) -> tuple[str, float]:
    """Name and number of a floor that is a rule, such as ``quantile:0.9``, ``mean:1`` or ``radius:0.1``.

    Raises:
        ValueError: If there is no such rule, or no number.
    """
    name, _, value = text.partition(":")
    with suppress(ValueError):
        if name in FLOORS:
            return name, float(value)
    raise ValueError(f"floor must be a number or one of {', '.join(FLOORS)} with a number, got {text!r}")


def floor_rule(text: str) -> Any:
    """The rule of `helene.rules.floors` that the text names.

    Raises:
        ValueError: As `parse_floor`, or if the number is out of its range.
    """
    from helene.rules import floors

    name, value = parse_floor(text)
    return getattr(floors, FLOORS[name])(value)


def _class(method: Method) -> Any:
    from helene import optimizers

    return getattr(optimizers, method.cls)
