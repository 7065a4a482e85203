"""The modules of a model that hold its trained parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

from helene.evaluation.directions import Target


def held_by(targets: Sequence[Target], model: nn.Module) -> dict[nn.Module, list[int]]:
    """The modules that hold each parameter (several for tied weights)."""
    index = {id(target.tensor): i for i, target in enumerate(targets)}
    owners = {}
    for module in model.modules():
        owned = [index[id(p)] for p in module.parameters(recurse=False) if id(p) in index]
        if owned:
            owners[module] = owned
    return owners


def around(by_module: Mapping[nn.Module, Sequence[int]], model: nn.Module) -> dict[nn.Module, list[int]]:
    """The modules that hold none of these themselves, but some inside; they own nothing."""
    others = (module for module in model.modules() if module not in by_module)
    return {module: [] for module in others if any(inner in by_module for inner in module.modules())}


def is_compiled(model: nn.Module) -> bool:
    """Whether the model, or a module of it, runs compiled: its hooks then do not."""
    return any(
        hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )


def strangers(targets: Sequence[Target], model: nn.Module, read: set[int]) -> str:
    """What to say of parameters that are not the model's and not among those that its first loss has read."""
    held = {i for owned in held_by(targets, model).values() for i in owned}
    unread = [i for i, target in enumerate(targets) if i not in held | read and target.tensor.numel()]
    if not unread:
        return ""
    return (
        f"{listed(targets, unread)}: not the model's, and not read by the first loss; what no loss reads only "
        "walks at random, so leave it out, or give the model that holds it"
    )


def listed(targets: Sequence[Target], indices: Sequence[int]) -> str:
    """Names of some parameters, the first four, for a message."""
    names = [targets[i].name for i in indices]
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
