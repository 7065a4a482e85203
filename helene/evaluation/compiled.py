"""Repeated blocks of a model, their forwards compiled: what recorded steps run with ``Engine(..., compile=True)``."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from helene.evaluation.undo import Undo

_KINDS = 16  # of compiled code a block's class may have: each takes seconds


class Compiled:
    """Compiled forwards of a model's repeated blocks, in the place of their own until undone.

    A block is one module to the engine: what its parts hold is copied before it runs. One whose parts have hooks is
    left out: code that was compiled before a hook was added would be taken for its own.

    Args:
        model: The model; it stays as it is.

    Attributes:
        blocks: The blocks, see `repeated_blocks`.
    """

    def __init__(self, model: nn.Module) -> None:
        self.blocks = [block for block in repeated_blocks(model) if not _hooked(block)]
        self._forwards: list[Any] = [torch.compile(block.forward, dynamic=True) for block in self.blocks]

    def put_on(self, undo: Undo) -> None:
        """Until it is undone, calls of the blocks run their compiled forwards."""
        for block, forward in zip(self.blocks, self._forwards, strict=True):
            undo.note(_restored(block))
            block.__dict__["forward"] = forward

    def compiling(self) -> AbstractContextManager[None]:
        """Inside, blocks that differ in more than weights and shapes may be of some kinds; of more it is an error."""
        patch: AbstractContextManager[None] = torch._dynamo.config.patch(
            recompile_limit=_KINDS, fail_on_recompile_limit_hit=True
        )
        return patch


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


def _hooked(block: nn.Module) -> bool:
    """Whether a module within has hooks; the block's own are called outside of its forward."""
    return any(part._forward_hooks or part._forward_pre_hooks for part in block.modules() if part is not block)


def _restored(block: nn.Module) -> Any:
    held = block.__dict__.get("forward")

    def restore() -> None:
        if held is None:
            block.__dict__.pop("forward", None)
        else:
            block.__dict__["forward"] = held

    return restore
