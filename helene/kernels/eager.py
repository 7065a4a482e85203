"""The fused kernels under `optimizer.step(closure)`: the same launches as the engine's, without its graph."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from helene.kernels import launch
from helene.kernels.methods import Method
from helene.kernels.tiles import Piece, Tiles

_tables: Any = WeakIdKeyDictionary()  # parameter -> its table: making one waits for the device


def write_perturbed(out: Tensor, theta: Tensor, parameter: int, direction: Any, radius: float) -> None:
    """out ← theta + radius · z."""
    tiles = _tables.get(theta)
    if tiles is None or not _fits(tiles.pieces, theta, parameter):
        tiles = _tables[theta] = Tiles([Piece(theta.detach(), parameter)])
    launch.perturb(tiles, out, None, *_on_device(direction, (radius,), theta.device))


def _fits(pieces: list[Piece], theta: Tensor, parameter: int) -> bool:
    """Whether a table is of this parameter as it is now; an empty one has none."""
    if not pieces:
        return not theta.numel()
    held = pieces[0].theta
    same = held.data_ptr() == theta.data_ptr() and held.shape == theta.shape and held.dtype == theta.dtype
    return same and held.device == theta.device and pieces[0].id == parameter


def apply(optimizer: Any, method: Method, step: int, slope: float) -> None:
    """theta and state ← one step along slope · z."""
    direction, hypers = optimizer._direction(step), method.rows(optimizer, step)
    stochastic = optimizer.param_groups[0]["rounding"] == "stochastic"
    there: dict[torch.device, tuple[Tensor, Tensor, Tensor]] = {}
    for tiles in method.tables(optimizer):
        device = tiles.base.device
        if device not in there:
            there[device] = (*_on_device(direction, (0.0, slope, 1.0), device), hypers.to(device))
        launch.update(tiles, method.code, *there[device], stochastic=stochastic)


@functools.lru_cache(maxsize=8)
def _on_device(direction: Any, values: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """What kernels read of a step; a probe asks for the same again for each parameter."""
    words = launch.control_words(direction.seed, direction.step, direction.draw)
    return (
        torch.tensor(words, dtype=torch.int64).to(device),
        torch.tensor(values, dtype=torch.float32).to(device),
    )
