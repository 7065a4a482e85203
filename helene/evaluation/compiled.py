"""Repeated blocks of a model, their forwards compiled: what recorded steps run with ``Engine(..., compile=True)``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from helene.evaluation.undo import Undo

_TF32_ROUNDING = 2.0**-11


class Compiled:
    """Compiled forwards of a model's repeated blocks, in the place of their own until undone.

    A block is one module to the engine: what its parts hold is copied before it runs.

    Args:
        model: The model; it stays as it is.

    Attributes:
        blocks: The blocks, see `repeated_blocks`.
    """

    def __init__(self, model: nn.Module) -> None:
        self.blocks = repeated_blocks(model)
        self._forwards: list[Any] = [torch.compile(block.forward, dynamic=True) for block in self.blocks]

    def put_on(self, undo: Undo) -> None:
        """Until it is undone, calls of the blocks run their compiled forwards."""
        for block, forward in zip(self.blocks, self._forwards, strict=True):
            undo.note(_restored(block))
            block.__dict__["forward"] = forward


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """The modules of each list of two or more of one class that have parts of their own; of nested lists the outer."""
    found: list[nn.Module] = []
    inside: set[nn.Module] = set()
    for module in model.modules():
        if not isinstance(module, nn.ModuleList) or module in inside:
            continue
        if len(module) > 1 and len({type(block) for block in module}) == 1 and list(module[0].children()):
            found += module
            inside |= {part for block in module for part in block.modules()}
    return list(dict.fromkeys(found))


def check_agreement(model: nn.Module, plain: Sequence[float], others: Sequence[float]) -> None:
    """Make sure that other forwards give the losses of plain ones, up to rounding.

    A forward is a chain of about as many roundings as it has modules; two forwards differ by four standard deviations
    of that at most. Losses that are not finite say nothing.

    Raises:
        RuntimeError: If they differ.
    """
    parameter = next(model.parameters())
    tf32 = parameter.is_cuda and parameter.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32
    rounding = _TF32_ROUNDING if tf32 else torch.finfo(parameter.dtype).eps / 2
    chain = sum(1 for part in model.modules() if not list(part.children()))
    limit = 4.0 * rounding * math.sqrt(2.0 * chain) * max(map(abs, plain))
    far = max(abs(a - b) for a, b in zip(plain, others, strict=True))
    if math.isfinite(far) and far > limit:
        raise RuntimeError(f"losses move by {far:.2g}, rounding by {limit:.2g} at most")


def _restored(block: nn.Module) -> Any:
    held = block.__dict__.get("forward")

    def restore() -> None:
        if held is None:
            block.__dict__.pop("forward", None)
        else:
            block.__dict__["forward"] = held

    return restore
