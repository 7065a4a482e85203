"""Bytes of tensors that are alive at once on the meta device, where tensors have shapes and no storage."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

BLOCK = 512  # what the CUDA allocator rounds to


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of tensors that operations make inside, in the allocator's blocks.

    Where a value is asked for that a meta tensor has not, it is one (or true).

    Args:
        known: Tensors that are there already and count nothing.

    Attributes:
        live: Now.
        peak: Most since it was last set.
    """

    def __init__(self, known: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._seen: dict[int, Any] = {id(t.untyped_storage()): t.untyped_storage() for t in known}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and args[0].is_meta:
            return 1.0 if args[0].is_floating_point() else args[0].dtype == torch.bool or 1
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._note(leaf)
        return out

    def _note(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self._seen or tensor.device.type == "cpu":
            return
        size = blocks(storage.nbytes())
        self.live += size
        self.peak = max(self.peak, self.live)

        def gone(_: Any) -> None:
            self.live -= size
            self._seen.pop(key, None)

        self._seen[key] = weakref.ref(storage, gone)


def blocks(size: int) -> int:
    """Bytes as the allocator hands them out."""
    return -(-size // BLOCK) * BLOCK


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        if mask is not None and mask.dtype == torch.bool:
            mask = torch.empty_like(mask, dtype=query.dtype)
        batch, heads, time, _ = query.shape
        out = query.new_empty(batch, time, heads, value.shape[-1])
        if any(ctx.needs_input_grad):
            sums = query.new_empty(batch, heads, time, dtype=torch.float32)
            ctx.save_for_backward(query, key, value, out, sums, *(() if mask is None else (mask,)))
        return out.transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        query, key, value, *_ = ctx.saved_tensors
        wide = torch.empty_like(query, dtype=torch.float32)  # the sum over keys
        found = [torch.empty_like(x) for x in (query, key, value)]
        del wide
        return (*found, None)


@contextmanager
def fused_attention(wanted: bool = True) -> Iterator[None]:
    """Inside, attention on the meta device holds what the GPU's fused kernels hold: no matrix of scores.

    A mode would not reach what a checkpoint computes again in the backward.
    """
    if not wanted:
        yield
        return
    functional, real = nn.functional, nn.functional.scaled_dot_product_attention

    def attend(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *a: Any, **k: Any) -> Any:
        return _Attention.apply(query, key, value, attn_mask)

    functional.scaled_dot_product_attention = attend
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = real


@contextmanager
def counting(known: Iterable[Tensor]) -> Iterator[LiveBytes]:
    """Counts inside, attention being fused."""
    with fused_attention(), LiveBytes(known) as live:
        yield live
