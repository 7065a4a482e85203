"""The fused kernels under `optimizer.step(closure)`: the same launches as the engine's, without its graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from helene.kernels import launch
from helene.kernels.methods import Method
from helene.kernels.tiles import Piece, Tiles


def write_perturbed(out: Tensor, theta: Tensor, parameter: int, direction: Any, radius: float) -> None:
    """out ← theta + radius · z."""
    control, values = _on_device(direction, [radius], theta.device)
    launch.perturb(Tiles([Piece(theta.detach(), parameter)]), out, None, control, values)


def apply(optimizer: Any, method: Method, step: int, slope: float) -> None:
    """theta and state ← one step along slope · z."""
    direction, hypers = optimizer._direction(step), method.rows(optimizer, step)
    stochastic = optimizer.param_groups[0]["rounding"] == "stochastic"
    there: dict[torch.device, tuple[Tensor, Tensor, Tensor]] = {}
    for tiles in method.tables(optimizer):
        device = tiles.base.device
        if device not in there:
            there[device] = (*_on_device(direction, [0.0, slope, 1.0], device), hypers.to(device))
        launch.update(tiles, method.code, *there[device], stochastic=stochastic)


def _on_device(direction: Any, values: list[float], device: torch.device) -> tuple[Tensor, Tensor]:
    words = launch.control_words(direction.seed, direction.step, direction.draw)
    return (
        torch.tensor(words, dtype=torch.int64).to(device),
        torch.tensor(values, dtype=torch.float32).to(device),
    )
