"""Parameter groups from a model's structure: a group is a layer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor, nn

from helene.inputs.names import canonical


def layer_groups(model: nn.Module, names: Sequence[str] | Callable[[str], str] | None = None) -> list[dict[str, Any]]:
    r"""One parameter group per transformer block, one for the embeddings, one for the rest (head, final norm).

    Blocks are the members of the outermost `torch.nn.ModuleList` and `torch.nn.Sequential` containers whose members are
    of one class; a model without such a stack gets a group per direct child. Frozen parameters are left out, tied ones
    appear once, under their first name. The groups are the layers i of the paper, d_i their number of elements.

    Args:
        model: Any module, also one wrapped by peft.
        names: Layers by name instead of by structure: regular expressions, a parameter belonging to the first that is
            found in its name, to "rest" if none is; or a function from a parameter's name to its layer's.

    Returns:
        Groups ``{"params": [(name, parameter), ...], "layer": name}`` in model order, for any optimizer here.

    Raises:
        ValueError: If no parameter requires a gradient, or a regular expression is none or is found in no trained one's
            name.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"layer_groups takes a module, got a {type(model).__name__}; pass the model, not its parameters"
        )
    layer_of = _by_structure(model) if names is None else names if callable(names) else _by_patterns(names)
    groups: dict[str, list[tuple[str, nn.Parameter]]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups.setdefault(layer_of(name), []).append((name, parameter))
    if not groups:
        raise none_trained(model.parameters(), " of the model")
    unused = [] if names is None or callable(names) else [name for name in names if name not in groups]
    if unused:
        raise ValueError(
            f"layers {', '.join(map(repr, unused))} hold no trained parameter; names are as in named_parameters()"
        )
    return [{"params": params, "layer": layer} for layer, params in groups.items()]


def none_trained(parameters: Iterable[Tensor], of: str = "") -> ValueError:
    """What to raise where no parameter requires a gradient: integers cannot."""
    found = list(parameters)
    if found and not any(p.is_floating_point() or p.is_complex() for p in found):
        dtypes = ", ".join(sorted({str(p.dtype) for p in found}))
        return ValueError(
            f"no parameter{of} requires a gradient, and of {dtypes} none can; tune floating-point ones, such as "
            "adapters (LoRA of peft) beside quantised weights"
        )
    return ValueError(f"no parameter{of} requires a gradient; unfreeze those to be tuned")


def _by_structure(model: nn.Module) -> Callable[[str], str]:
    blocks = {_path(path) for path in _blocks(model)}
    embeddings = {_path(name) for name, module in model.named_modules() if isinstance(module, nn.Embedding)}
    return lambda name: _layer_of(canonical(name), blocks, embeddings)


def _path(module: str) -> str:
    """A module's name without wrappers' prefixes."""
    return canonical(f"{module}.").removesuffix(".")


def _by_patterns(patterns: Sequence[str]) -> Callable[[str], str]:
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as err:
            raise ValueError(
                f"the layer {pattern!r} is no regular expression: {err}; write a literal character as in re.escape"
            ) from err
    return lambda name: next((pattern for pattern in patterns if re.search(pattern, name)), "rest")


def _layer_of(name: str, blocks: set[str], embeddings: set[str]) -> str:
    parts = name.split(".")
    prefixes = [".".join(parts[:k]) for k in range(1, len(parts))]
    for prefix in prefixes:
        if prefix in blocks:
            return prefix
    if embeddings.intersection(prefixes):
        return "embeddings"
    return "head" if blocks else parts[0]


def _blocks(model: nn.Module) -> set[str]:
    blocks: set[str] = set()

    def visit(module: nn.Module, path: str) -> None:
        children = list(module.named_children())
        kinds = {type(child) for _, child in children}
        if isinstance(module, nn.ModuleList | nn.Sequential) and len(children) > 1 and len(kinds) == 1:
            blocks.update(f"{path}{name}" for name, _ in children)
            return
        for name, child in children:
            visit(child, f"{path}{name}.")

    visit(model, "")
    return blocks
