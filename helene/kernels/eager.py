"""The fused kernels under `optimizer.step(closure)`: the same launches as the engine's, without its graph."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from helene.kernels import launch, methods
from helene.kernels.tiles import Piece, Tiles
from helene.plan import StepPlan

# The first parameter of a launch -> what its table was made of, and the table: making one waits for the device.
_tables: Any = WeakIdKeyDictionary()


def write_perturbed(
    outs: Sequence[Tensor], thetas: Sequence[Tensor], ids: Sequence[int], direction: Any, radius: float
) -> None:
    """out ← theta + radius · z for each, in one launch a dtype and device."""
    kinds: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    for i, theta in enumerate(thetas):
        kinds.setdefault((theta.dtype, theta.device), []).append(i)
    for (_, device), members in kinds.items():
        first = thetas[members[0]]
        lowest = min((outs[i] for i in members), key=Tensor.data_ptr)
        low, size = lowest.data_ptr(), lowest.element_size()
        made_of = [
            (thetas[i].data_ptr(), thetas[i].numel(), ids[i], (outs[i].data_ptr() - low) // size) for i in members
        ]
        held = _tables.get(first)
        if held is None or held[0] != made_of or held[1].base.device != device:
            pieces = [Piece(thetas[i].detach(), ids[i], out) for i, (*_, out) in zip(members, made_of, strict=True)]
            held = _tables[first] = made_of, Tiles(pieces)
        launch.perturb(held[1], lowest, None, *_on_device(direction, (radius,), device))


def update(optimizer: Any, plan: StepPlan, slope: float) -> None:
    """theta and state ← one step along slope · z."""
    method = methods.fused(plan, optimizer.targets)
    assert isinstance(method, methods.Fused)
    direction, hypers = optimizer.direction(plan), method.rows(plan)
    there: dict[torch.device, tuple[Tensor, Tensor, Tensor]] = {}
    for tiles in methods.tables(optimizer, plan):
        device = tiles.base.device
        if device not in there:
            there[device] = (*_on_device(direction, (0.0, slope, 1.0), device), hypers.to(device))
        launch.update(tiles, method.code, *there[device])


@functools.lru_cache(maxsize=8)
def _on_device(direction: Any, values: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """What kernels read of a step; a probe asks for the same again for each parameter."""
    words = launch.control_words(direction.seed, direction.step, direction.draw)
    return (
        torch.tensor(words, dtype=torch.int64).to(device),
        torch.tensor(values, dtype=torch.float32).to(device),
    )
