"""How products of float32 weights are computed: as they are, in TF32, or of operands rounded to bfloat16."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, get_args

import torch

Products = Literal["float32", "tf32", "bfloat16"]
PRODUCTS: tuple[str, ...] = get_args(Products)


@contextmanager
def matmuls(name: str) -> Iterator[None]:
    """Inside, products on CUDA are TF32's where that is the name, and float32's otherwise, whatever was set before.

    It is one switch for all threads of the process, so it goes around a run: the two forwards of a captured step have
    a thread each.
    """
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def forwards_of(call: Callable[..., Any], name: str, device_type: str) -> Callable[..., Any]:
    """The function with its forwards in autocast where the name is ``bfloat16``, else the function itself.

    Autocast belongs to a thread. Its copies of weights are not kept: a captured step must make them anew.
    """
    if name != "bfloat16":
        return call

    @functools.wraps(call)
    def cast(*args: Any, **options: Any) -> Any:
        with torch.autocast(device_type, torch.bfloat16, cache_enabled=False):
            return call(*args, **options)

    return cast
