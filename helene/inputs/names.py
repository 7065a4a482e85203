"""One name for a parameter, whatever its model is wrapped in."""

from __future__ import annotations

from collections.abc import Sequence

# What torch.compile, FSDP and activation checkpointing put into names, wherever the wrapped module stands.
_WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
_OUTERMOST = "module"  # DistributedDataParallel, DataParallel and torch.optim.swa_utils wrap whole models


def canonical(name: str) -> str:
    """The name without wrappers' prefixes: that of the parameter in the plain model."""
    *path, last = name.split(".")
    path = [part for part in path if part not in _WRAPPERS]
    while path and path[0] == _OUTERMOST:
        path.pop(0)
    return ".".join([*path, last])


def canonical_names(names: Sequence[str]) -> list[str]:
    """The names without wrappers' prefixes; as they are, where two would be one."""
    plain = [canonical(name) for name in names]
    return plain if len(set(plain)) == len(set(names)) else list(names)
