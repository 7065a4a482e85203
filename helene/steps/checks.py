"""Checks of parameters, groups and closures that name the value, the limit and the way out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import wraps
from typing import Any, ParamSpec

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from helene.evaluation.directions import Target
from helene.rules import CurvatureRule, HeleneRule, Rule, storage
from helene.rules.storage import Storage
from helene.steps.measurement import Measurement, Pairs
from helene.steps.plan import Probing, names

SUPPORTED = torch.float64, torch.float32, torch.bfloat16, torch.float16
LABELS = "params", "param_names", "layer", "name"  # beside hyper-parameters in a group
SCHEDULERS = "initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum", "swa_lr"  # keys that torch's keep in it
_ANY = frozenset(names(Probing, HeleneRule, Storage))  # hyper-parameters that some method reads
_P = ParamSpec("_P")


def closure(value: Any) -> Callable[[], Any]:
    """Raise ValueError unless value can be called."""
    if not callable(value):
        got = "nothing" if value is None else f"a {type(value).__name__}"
        way_out = "step(lambda: loss(...))"
        if value is None:
            way_out += ", or helene.integrations.trainer.HeleneTrainer in the place of transformers.Trainer"
        raise ValueError(f"step needs a function that returns the loss of one minibatch, got {got}; {way_out}")
    found: Callable[[], Any] = value
    return found


@contextmanager
def without_backward() -> Iterator[None]:
    """Raise ValueError where a closure that runs inside calls backward."""
    try:
        yield
    except RuntimeError as err:
        if not any(
            words in str(err) for words in ("does not require grad", "backward through the graph a second time")
        ):
            raise
        raise ValueError(
            "the closure calls backward; it must only return the loss, so take backward out (a loss that has a "
            "derivative in it takes that inside torch.enable_grad(), with create_graph=True)"
        ) from err


def parameter(p: Tensor, name: str) -> None:
    """Raise ValueError unless p can be trained here."""
    if hasattr(p, "device_mesh") or hasattr(p, "_fsdp_flattened") or type(p).__name__ == "FlatParameter":
        raise ValueError(
            f"parameter {name} is sharded ({type(p).__name__}), and its z belongs to the whole of it; make the "
            "optimizer by helene.engine.sharded (fully_shard), or put whole layers on several devices (device_map)"
        )
    if p.layout != torch.strided:
        raise ValueError(f"parameter {name} is {p.layout}; only dense parameters can be perturbed")
    if p.dtype not in SUPPORTED:
        raise ValueError(f"parameter {name} is {p.dtype}; supported are {', '.join(str(d)[6:] for d in SUPPORTED)}")
    if p.is_meta:
        raise ValueError(f"parameter {name} is on the meta device; load the weights before making the optimizer")
    if p.is_inference():
        raise ValueError(f"parameter {name} was made in torch.inference_mode and cannot be updated; clone it outside")
    if _overlaps(p):
        raise ValueError(
            f"parameter {name} of shape {tuple(p.shape)} and strides {p.stride()} has elements that share memory; "
            "train a contiguous() copy of it, or what it is expanded from"
        )


def arguments(method: str, given: Iterable[str], named: Iterable[str], options: Iterable[str]) -> None:
    """Raise TypeError unless the options given are known; it lists all arguments, those of the signature first."""
    known = (*named, *options)
    for name in sorted({*given} - {*options}):
        near = get_close_matches(name, known, n=1)
        meant = f" (did you mean {near[0]!r}?)" if near else ""
        raise TypeError(f"{method} has no argument {name!r}{meant}; it takes {', '.join(known)}")


def required(name: str, advice: str) -> Callable[[Callable[_P, None]], Callable[_P, None]]:
    """Have a constructor raise TypeError with advice where the keyword argument is left out; its signature stays."""

    def decorate(init: Callable[_P, None]) -> Callable[_P, None]:
        @wraps(init)
        def checked(*args: _P.args, **kwargs: _P.kwargs) -> None:
            if name not in kwargs:
                raise TypeError(f"{type(args[0]).__name__} needs {name}; {advice}")
            init(*args, **kwargs)

        return checked

    return decorate


def no_module(params: Any) -> None:
    """Raise TypeError if a module is in the place of its parameters."""
    if isinstance(params, nn.Module):
        raise TypeError(
            f"params must be parameters, got a module ({type(params).__name__}); give model.named_parameters()"
        )


def group(new: dict[str, Any], others: Sequence[Mapping[str, Any]], hyper: Iterable[str]) -> None:
    """Raise ValueError unless a parameter group's keys are known and none of its parameters is given twice.

    TypeError is raised for a module in the place of a parameter.

    Args:
        new: The group, as users give it; an iterator of parameters is made a list.
        others: The groups before it.
        hyper: Names of the hyper-parameters.
    """
    known = (*LABELS, *hyper)
    for key in new:
        if key not in known and key not in SCHEDULERS:
            raise ValueError(
                f"parameter group {len(others)} has the key {key!r}, which nothing would read; correct it or leave it "
                f"out: known are {', '.join(known)} and what torch's schedulers keep there"
            )
    if "params" not in new:
        raise ValueError(f"parameter group {len(others)} has no 'params'; it has {', '.join(new) or 'nothing'}")
    no_module(new["params"])
    if isinstance(new["params"], set):
        return  # torch refuses it
    new["params"] = [new["params"]] if isinstance(new["params"], Tensor) else list(new["params"])
    groups = (*others, new)
    first = {id(p): (number, i) for number, group in enumerate(others) for i, p in enumerate(group["params"])}
    for i, entry in enumerate(new["params"]):
        p, here = entry[1] if isinstance(entry, tuple) else entry, (len(others), i)
        no_module(p)
        if first.setdefault(id(p), here) != here:
            raise ValueError(
                f"{_place(groups, *first[id(p)])} is given again as {_place(groups, *here)} and would move twice a "
                "step; give each parameter once, as model.named_parameters() and helene.layer_groups(model) do"
            )


def one_name_each(groups: Sequence[Mapping[str, Any]]) -> None:
    """Raise ValueError where a group's names are not one a parameter, as after parameters were changed by hand."""
    for number, group in enumerate(groups):
        given = group.get("param_names")
        if given is not None and len(given) != len(group["params"]):
            raise ValueError(
                f"group {number} has {len(group['params'])} parameters and {len(given)} names; add parameters by "
                "add_param_group, and stop training one by requires_grad_(False)"
            )


def _place(groups: Sequence[Mapping[str, Any]], number: int, i: int) -> str:
    entry, names = groups[number]["params"][i], groups[number].get("param_names")
    name = entry[0] if isinstance(entry, tuple) else names[i] if names else i
    return f"parameter {name} of group {number}"


def shared(descriptions: Sequence[Any], keys: Iterable[str]) -> None:
    """Raise ValueError unless groups agree on hyper-parameters that belong to the whole step."""
    for other in descriptions[1:]:
        for key in keys:
            mine, first = getattr(other, key), getattr(descriptions[0], key)
            if mine != first:
                raise ValueError(f"{key} belongs to the whole step, but groups have {mine!r} and others {first!r}")


def layout(old: Sequence[Any], new: Sequence[Any], layer_name: Callable[[int], str]) -> None:
    """Raise ValueError where hyper-parameters ask for other state than a layer has had since its first step."""
    for index, ((had, stored, counted), (wants, asked, counts)) in enumerate(zip(old, new, strict=False)):
        way_out = "set it before the first step, or make a new optimizer"
        if stored != asked:
            raise ValueError(
                f"state_dtype of {layer_name(index)} is {asked!r}, its state is stored as {stored!r}; {way_out}"
            )
        if had != wants:
            raise ValueError(
                f"the state of {layer_name(index)} is ({', '.join(had)}), its hyper-parameters have come to ask for "
                f"({', '.join(wants)}); what they are follows from curvature and momentum: {way_out}"
            )
        if counted and counts and counted != counts:
            raise ValueError(
                f"interval and first_estimate of {layer_name(index)} were {counted} and are {counts}, but "
                f"bias_correction counts the estimates of h by them; {way_out}, or set bias_correction to False"
            )


def state_dtypes(
    targets: Sequence[Target],
    state: Mapping[Tensor, Mapping[str, Any]],
    rules: Sequence[Rule],
    kept: Sequence[Storage],
) -> None:
    """Raise ValueError where a parameter's dtype has come to ask for state in another one than there is."""
    for p, _, parameter, layer in targets:
        for name, (_, dtype) in storage.layout(p, rules[layer], kept[layer].state_dtype).items():
            held = state.get(p, {}).get(name)
            if held is not None and held.dtype != dtype:
                raise ValueError(
                    f"parameter {parameter} has come to be {p.dtype}, whose {name} is {dtype}, but there is one in "
                    f"{held.dtype}; give the model its dtype before the first step, or make a new optimizer"
                )


def source(rule: Rule, measurement: Measurement) -> None:
    """Raise ValueError if the curvature source takes probes that the method does not make."""
    if isinstance(rule, CurvatureRule) and rule.curvature.needs_probes and not isinstance(measurement, Pairs):
        raise ValueError(f"curvature={rule.curvature.name!r} needs probes; use 'backprop' or 'sampled_labels' here")


def strangers(group: Mapping[str, Any], known: Sequence[str]) -> None:
    """Raise ValueError if a group has a hyper-parameter of another method, which nothing would read."""
    for key in sorted(group.keys() & _ANY - {*known}):
        raise ValueError(
            f"a parameter group has the key {key!r}, which this method does not read; take it out: known are "
            f"{', '.join((*LABELS, *known))}"
        )


def one_number_each(values: Mapping[str, Any]) -> None:
    """Raise ValueError if a hyper-parameter is several numbers, which would be one an element where shapes allow it."""
    for key, value in values.items():
        if isinstance(value, Tensor):
            raise ValueError(
                f"{key} must be one number, got a tensor of shape {tuple(value.shape)}; give each layer its own in a "
                "parameter group"
            )


def finite(scalars: Sequence[float], eps: float | None) -> None:
    """Raise FloatingPointError unless what a step measured from finite losses is finite too."""
    if not all(map(math.isfinite, scalars)):
        raise FloatingPointError(
            f"slopes {list(scalars)[:4]} of finite losses are not finite, so eps = {eps!r} is too small; parameters "
            "and state are unchanged. 1e-3 is usual in float32"
        )


class Claim:
    """An optimizer's claim to be the one that steps its parameters; made by its first step. It keeps none alive."""

    _owners = WeakIdKeyDictionary()  # parameter -> the claim made last
    _made = 0

    def __init__(self, method: str, targets: Sequence[Target]) -> None:
        self.method = method
        for target in targets:
            Claim._owners[target.tensor] = self
        Claim._made += 1
        self.checked = Claim._made

    def check(self, targets: Sequence[Target]) -> None:
        """Raise ValueError if another optimizer has stepped one of the parameters since.

        Two in turn would each undo what the other's state assumes, and use the same directions. One after the other is
        fine.
        """
        if self.checked == Claim._made:
            return
        for target in targets:
            other = Claim._owners[target.tensor]
            if other is not self:
                raise ValueError(
                    f"parameter {target.name} has been stepped by another optimizer ({other.method}) since this one "
                    "last was; use one optimizer with parameter groups, or make this one anew from its state_dict"
                )
        self.checked = Claim._made


def _overlaps(p: Tensor) -> bool:
    """Whether elements may share memory: each axis must step beyond all that the finer ones reach."""
    reach = 0
    for stride, size in sorted((stride, size) for stride, size in zip(p.stride(), p.shape, strict=True) if size > 1):
        if stride <= reach:
            return p.numel() > 0
        reach += stride * (size - 1)
    return False
