"""What a checkpoint or a trajectory must have in common with the optimizer that takes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from helene import noise
from helene.directions import Target


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
            f"{where}; make the model, its dtype and the names the same"
        )
