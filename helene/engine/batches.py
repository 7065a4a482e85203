"""Batches of one shape share a captured step; their tensors are copied to where it reads them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map, tree_unflatten

Loss = Callable[[nn.Module, Any], Any]
MAX_SHAPES = 16  # that an engine keeps unless it is told
PADDING = {"input_ids": 0, "attention_mask": 0, "token_type_ids": 0, "labels": -100}


def check_loss(loss: Any) -> None:
    """Raise ValueError unless a loss can be called with a model and a batch, where its signature is known."""
    try:
        with suppress(ValueError):  # written in C, most probably
            called = loss.forward if isinstance(loss, nn.Module) else loss
            inspect.signature(called, follow_wrapped=False).bind(None, None)
    except TypeError as err:
        raise ValueError(
            f"the engine calls loss(model, batch), and {loss!r} does not take these two: {err}; give a function such "
            "as lambda model, batch: model(**batch).loss"
        ) from err


class Layout:
    """How a batch is laid out: structure, shapes, dtypes, and all that is no tensor."""

    def __init__(self, batch: Any) -> None:
        leaves, self.spec = tree_flatten(batch)
        self.leaves: list[Any] = leaves
        for leaf in leaves:
            if not isinstance(leaf, Tensor | bool | int | float | str | None):
                raise ValueError(
                    f"the batch holds a {type(leaf).__name__}; give tensors, numbers and text in dicts and lists"
                )
            if isinstance(leaf, Tensor) and (leaf.layout != torch.strided or leaf.is_nested):
                raise ValueError(f"the batch holds a tensor of layout {leaf.layout}; give dense ones")
        parts = [(tuple(x.shape), x.dtype) if isinstance(x, Tensor) else ("value", repr(x)) for x in leaves]
        self.key = (str(self.spec), *parts)


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Inside, streams and graphs are those of the device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def plain(batch: Any) -> Any:
    """A batch whose outer mapping, such as transformers' BatchEncoding, is a dict."""
    return dict(batch) if isinstance(batch, Mapping) and type(batch) is not dict else batch


def moved(batch: Any, device: torch.device) -> Any:
    """The batch on a device, for a loss that Python runs."""
    return tree_map(lambda x: x.to(device) if isinstance(x, Tensor) else x, batch)


def pad_to_bucket(batch: Any, buckets: Sequence[int], padding: Mapping[str, int], side: str, axis: int = 1) -> Any:
    """The batch, its named tensors padded on an axis to the smallest bucket that holds them.

    Raises:
        ValueError: If the batch is no dict of tensors with an attention mask (padding would change the loss), or is
            longer than every bucket.
    """
    if not isinstance(batch, dict) or "attention_mask" not in batch:
        raise ValueError(
            "length buckets need a batch that is a dict with an attention_mask, else padding is read as text"
        )
    length = batch["attention_mask"].shape[axis]
    fitting = [size for size in buckets if size >= length]
    if not fitting:
        raise ValueError(f"the batch has length {length}, above the largest bucket {max(buckets)}; add a larger one")
    missing = min(fitting) - length
    if not missing:
        return batch
    padded = dict(batch)
    for name, value in batch.items():
        if isinstance(value, Tensor) and value.dim() > axis and value.shape[axis] == length:
            if name not in padding:
                raise ValueError(
                    f"{name} has the batch's length, but no padding value; give one: padding={{{name!r}: ...}}"
                )
            widths = [0, 0] * (value.dim() - axis - 1) + ([missing, 0] if side == "left" else [0, missing])
            padded[name] = torch.nn.functional.pad(value, widths, value=padding[name])
    return padded


def twice(batch: Mapping[str, Any], indices: Mapping[str, str]) -> dict[str, Any]:
    """A batch that holds its examples two times, one after the other.

    Args:
        batch: Its tensors have examples, rows or the like on their first axis.
        indices: Entries that are indices, and into the first axis of which others.
    """
    shifts = {name: len(batch[of]) for name, of in indices.items()}
    return {
        name: torch.cat([x, x + shifts.get(name, 0)]) if isinstance(x, Tensor) and x.dim() else x
        for name, x in batch.items()
    }


class Static:
    """The tensors of one layout at fixed addresses on a device."""

    def __init__(self, layout: Layout, device: torch.device) -> None:
        self.spec: TreeSpec = layout.spec
        self.leaves = [
            torch.empty_like(x, device=device, memory_format=torch.contiguous_format) if isinstance(x, Tensor) else x
            for x in layout.leaves
        ]
        self.fill(layout)

    @property
    def batch(self) -> Any:
        """The batch, with these tensors in it."""
        return tree_unflatten(self.leaves, self.spec)

    def fill(self, layout: Layout) -> None:
        """Copy another batch of the same layout here."""
        for mine, other in zip(self.leaves, layout.leaves, strict=True):
            if isinstance(mine, Tensor):
                mine.copy_(other, non_blocking=True)
