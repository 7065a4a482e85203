"""Whether a saved state fits the optimizer that takes it, told before anything changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from helene.optimizers import checks
from helene.optimizers import state as storage

if TYPE_CHECKING:
    from helene.optimizers.base import Base


def check_groups(optimizer: Base, groups: Sequence[Mapping[str, Any]]) -> None:
    """Raise ValueError unless saved groups have all hyper-parameters, in range, and agree where they must."""
    wanted = optimizer.defaults.keys() - {"differentiable"}  # which torch adds when it unpickles
    for group in groups:
        missing = sorted(wanted - group.keys())
        if missing:
            raise ValueError(f"a group of the state_dict has no {missing[0]}; take a whole one of this method")
        checks.whole(group["step"], "step", 0, 1 << 32, "the number of steps made")
        optimizer._check({**group})
        optimizer._check_shared(group, groups[0])


def check_state(optimizer: Base, state_dict: Mapping[str, Any]) -> None:
    """Raise ValueError unless each trained parameter has the state that its step and state_dtype ask for."""
    saved = [(i, group) for group in state_dict["param_groups"] for i in group["params"]]
    params = [id(p) for group in optimizer.param_groups for p in group["params"]]
    place = dict(zip(params, saved, strict=False))  # torch's own check of their number comes next
    for target in optimizer._targets:
        i, group = place.get(id(target.tensor), (None, {"step": 0}))
        if group["step"]:
            shapes = storage.shapes(target.tensor, optimizer._STATE, optimizer._COUNTERS, group["state_dtype"])
            storage.check(state_dict["state"].get(i, {}), shapes, target.name)
