"""Checkpoints in safetensors: weights, buffers and optimizer state, to resume and for runs that cannot be replayed.

One file; no pickle is read. Tied parameters are stored once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from helene.inputs import extras, numeric
from helene.rules import floors

try:
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import save_file
except ModuleNotFoundError as err:
    raise extras.needed_by("checkpoints", err) from err

from helene.evaluation.curvature import Source, named
from helene.evaluation.reads import has_span, span
from helene.inputs.files import write_whole
from helene.inputs.names import canonical_names
from helene.steps.base import Base

FORMAT = "helene-checkpoint/1"


def save_checkpoint(path: str | Path, model: nn.Module, optimizer: Base) -> None:
    """Write what a run needs to go on bit for bit; the file appears whole or not at all.

    Raises:
        OSError: If it cannot be written, or the path is no regular file's.
    """
    state = optimizer.state_dict()
    tensors = {f"model/{name}": tensor for name, tensor in _model_tensors(model).items()}
    for index, entries in state["state"].items():
        for name, tensor in entries.items():
            tensors[f"state/{index}/{name}"] = tensor
    metadata = {
        "format": FORMAT,
        "param_groups": json.dumps(state["param_groups"], default=_as_json),
        "helene": json.dumps(state["helene"]),
        "more": json.dumps({name: state[name] for name in state.keys() - {"state", "param_groups", "helene"}}),
    }
    whole = _apart({name: tensor.detach().contiguous() for name, tensor in tensors.items()})

    def write(partial: Path) -> None:
        try:
            save_file(whole, partial, metadata)
        except SafetensorError as err:
            raise OSError(str(err)) from err

    write_whole(path, write)


def load_checkpoint(path: str | Path, model: nn.Module, optimizer: Base) -> None:
    """Read a checkpoint into a model and an optimizer of the same kind.

    Raises:
        ValueError: If it is no checkpoint of ours, or of another model, method or noise version, or has weights that
            are not finite; nothing is then changed.
    """
    try:
        opened = safe_open(path, framework="pt")
    except FileNotFoundError:
        raise
    except (SafetensorError, OSError) as err:
        raise ValueError(f"{path} is no checkpoint: {err}; it may have been cut short, take an earlier one") from err
    with opened as file:
        metadata = file.metadata() or {}
        if metadata.get("format") != FORMAT:
            raise ValueError(f"{path} is of format {metadata.get('format')!r}, not {FORMAT!r}; it may be plain weights")
        targets = _model_tensors(model)
        keys = [key for key in file.keys() if key.startswith("model/")]
        stored = dict(zip(canonical_names([key.removeprefix("model/") for key in keys]), keys, strict=True))
        try:
            identity = json.loads(metadata["helene"])
            groups: list[dict[str, Any]] = json.loads(metadata["param_groups"])
            groups = [{name: floors.from_json(value) for name, value in group.items()} for group in groups]
            optimizer.check_identity(identity, "checkpoint")
            _check_names(stored, targets)
            for name, target in targets.items():
                _check_tensor(name, file.get_tensor(stored[name]), target)
            state: dict[int, dict[str, Tensor]] = {}
            for key in file.keys():
                if key.startswith("state/"):
                    _, index, name = key.split("/", 2)
                    state.setdefault(int(index), {})[name] = file.get_tensor(key)
            more = json.loads(metadata.get("more", "{}"))
            optimizer.load_state_dict({**more, "state": state, "param_groups": groups, "helene": identity})
        except ValueError as err:
            raise ValueError(f"{path}: {err}") from err
        except (KeyError, TypeError, SafetensorError) as err:
            raise ValueError(f"{path} is damaged: {type(err).__name__}: {err}; take an earlier checkpoint") from err
        with torch.no_grad():
            for name, key in stored.items():
                held = tuple(slice(None if stride else 1) for stride in targets[name].stride())  # what is not expanded
                targets[name][held].copy_(file.get_tensor(key)[held])


def _check_names(stored: Mapping[str, str], targets: Mapping[str, Tensor]) -> None:
    differing = sorted(set(stored) ^ set(targets))
    if differing:
        raise ValueError(f"it and the model do not both have {', '.join(differing[:3])}; build the same model")


def _check_tensor(name: str, found: Tensor, target: Tensor) -> None:
    """Raise ValueError unless a stored tensor can take the place of the model's; buffers may hold infinities."""
    if (found.shape, found.dtype) != (target.shape, target.dtype):
        raise ValueError(
            f"{name} is {found.dtype} of shape {tuple(found.shape)}, the model's {target.dtype} of "
            f"{tuple(target.shape)}; build the same model"
        )
    if isinstance(target, nn.Parameter) and found.is_floating_point() and not bool(torch.isfinite(found).all()):
        raise ValueError(f"{name} has weights that are not finite; take an earlier checkpoint")


def _as_json(value: Any) -> Any:
    """Entries of a group that are no plain numbers or words."""
    if isinstance(value, Source):
        return named(value)
    return floors.as_json(value) if callable(value) else numeric.plain(value)


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of which none shares memory with another, by copies of some: safetensors takes no others."""
    end, found = 0, dict(tensors)
    for name in sorted((name for name in found if has_span(found[name])), key=lambda name: span(found[name])[0]):
        start, last = span(found[name])
        if start < end:
            found[name] = found[name].clone()
        end = max(end, last)
    return found


def _model_tensors(model: nn.Module) -> dict[str, Tensor]:
    held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return dict(zip(canonical_names(list(held)), held.values(), strict=True))
