"""What belongs to a saved state, and whether it fits the optimizer that takes it, told before anything changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from helene import noise
from helene.evaluation.directions import Target
from helene.inputs import numeric
from helene.rules import HeleneRule, storage
from helene.rules.storage import Storage
from helene.steps import checks
from helene.steps.plan import Probing, names

if TYPE_CHECKING:
    from helene.steps.layered import Layered

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_CHUNK = 1 << 20  # elements that are summed at once: 25 MB of temporaries


def describe(method: str, state: Sequence[str], targets: Sequence[Target]) -> dict[str, Any]:
    """Method, noise version, names of the state, and each trained parameter's id, shape and dtype, as JSON takes it."""
    layout = [[t.id, list(t.tensor.shape), str(t.tensor.dtype)] for t in targets]
    return {"method": method, "noise": noise.NOISE_VERSION, "state": list(state), "parameters": layout}


def plain(other: Mapping[str, Any]) -> dict[str, Any]:
    """An identity as `describe` gives it, whatever kind of sequences its file has."""
    return {**other, "parameters": [list(entry) for entry in other.get("parameters", ())]}


def compare(mine: Mapping[str, Any], theirs: Mapping[str, Any], names: Sequence[str], what: str) -> None:
    """Raise ValueError, naming the first difference, unless the two are equal."""
    for key in ("method", "noise", "state"):
        if theirs.get(key) != mine[key]:
            raise ValueError(f"the {what} is of {key} {theirs.get(key)!r}, this optimizer of {mine[key]!r}")
    layout = [list(entry) for entry in theirs["parameters"]]
    if layout != mine["parameters"]:
        differ = [i for i, (a, b) in enumerate(zip(layout, mine["parameters"], strict=False)) if a != b]
        where = f"the first that differs is {names[differ[0]]}" if differ else "their number differs"
        raise ValueError(
            f"the {what} belongs to {len(layout)} other parameters than these {len(names)} (ids, shapes, dtypes): "
            f"{where}; make the model, its dtype, names and groups the same (after HeleneTrainer: "
            "helene.layer_groups(model))"
        )


@torch.no_grad()
def fingerprint(tensor: Tensor) -> Tensor:
    """Two 64-bit sums over a tensor's bits, one of them weighted by position; equal tensors have equal ones."""
    bits = tensor.detach().reshape(-1).view(_INTEGERS[tensor.element_size()])
    plain = torch.zeros((), dtype=torch.int64, device=tensor.device)
    weighted = torch.zeros_like(plain)
    for start in range(0, bits.numel(), _CHUNK):
        part = bits[start : start + _CHUNK].to(torch.int64)
        plain += part.sum()
        weighted += (part * (torch.arange(part.numel(), device=tensor.device) + start + 1)).sum()
    return torch.stack([plain, weighted])


def fingerprints(targets: Sequence[Target]) -> list[list[int]]:
    """Two numbers for each parameter's weights, the same on every device."""
    return [fingerprint(target.tensor).tolist() for target in targets]


def check(optimizer: Layered, state_dict: Mapping[str, Any]) -> None:
    """Raise ValueError unless saved groups are whole, in range and agree, and each trained parameter has its state."""
    groups = state_dict["param_groups"]
    kinds = optimizer.RULE, Storage, optimizer.PROBING
    described: list[Any] = []
    for group, mine in zip(
        groups, optimizer.param_groups, strict=False
    ):  # torch's own check of their number comes next
        missing = sorted({*names(*kinds), "step"} - group.keys())
        if missing:
            raise ValueError(f"a group of the state_dict has no {missing[0]}; take a whole one of this method")
        numeric.whole(numeric.plain(group["step"]), "step", 0, 1 << 32, "the number of steps made")
        described.append([kind(**{n: numeric.plain(group[n]) for n in names(kind)}) for kind in kinds])
        _check_floor(described[-1][0], mine.get("floor"))
    checks.shared([kinds[2] for kinds in described], names(optimizer.PROBING))
    checks.shared([kinds[0] for kinds in described], optimizer.RULE.SHARED)
    by_hand = state_dict.get("lr_by_hand", [])
    if not isinstance(by_hand, list) or not all(i in range(len(groups)) for i in by_hand):
        raise ValueError(
            f"the state_dict has lr_by_hand={by_hand!r}, they must be places of its {len(groups)} groups; take a whole "
            "state_dict or checkpoint"
        )
    saved = [(i, group, own) for group, own in zip(groups, described, strict=False) for i in group["params"]]
    params = [id(p) for group in optimizer.param_groups for p in group["params"]]
    place = dict(zip(params, saved, strict=False))
    for target in optimizer.targets:
        i, group, own = place.get(id(target.tensor), (None, {"step": 0}, None))
        if own is not None and group["step"]:
            expected = storage.layout(target.tensor, own[0], own[1].state_dtype)
            storage.check(state_dict["state"].get(i, {}), expected, target.name)


def known_entries(optimizer: Layered, groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Saved groups without what this method never read of probing, though groups once held it."""
    unread = set(names(Probing)) - set(names(optimizer.PROBING))
    return [{name: value for name, value in group.items() if name not in unread} for group in groups]


def _check_floor(rule: Any, mine: Any) -> None:
    """A number in the place of a rule that follows h would freeze the floor."""
    if isinstance(rule, HeleneRule) and not callable(rule.floor) and getattr(mine, "looks_at_h", callable(mine)):
        raise ValueError(
            f"the state_dict holds the floor {rule.floor!r}, this optimizer's is the rule {mine!r}: loading it would "
            "freeze the floor; set the entry 'floor' of its groups to the rule, or make the optimizer with the number"
        )
