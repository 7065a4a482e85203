"""The fused kernels under `optimizer.step(closure)`: the same launches as the engine's, without its graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from helene.kernels import launch
from helene.kernels.methods import NUM_HYPERS, Method
from helene.kernels.tiles import Piece, Tiles


def write_perturbed(out: Tensor, theta: Tensor, parameter: int, direction: Any, radius: float) -> None:
    """out ← theta + radius · z."""
    control, values = _on_device(direction, [radius], theta.device)
    launch.perturb(Tiles([Piece(theta.detach(), parameter)]), out, None, control, values)


def apply(optimizer: Any, method: Method, step: int, slope: float) -> None:
    """theta and state ← one step along slope · z."""
    device = optimizer._targets[0].tensor.device
    control, values = _on_device(optimizer._direction(step), [0.0, slope, 1.0], device)
    hypers = hyper_rows(optimizer, method, step).to(device)
    tables, stochastic = update_tables(optimizer), optimizer.param_groups[0]["rounding"] == "stochastic"
    for tiles in tables:
        launch.update(tiles, method.code, control, values, hypers, stochastic=stochastic)


def hyper_rows(optimizer: Any, method: Method, step: int) -> Tensor:
    """Hyper-parameters of a step, float32, shape (groups, `NUM_HYPERS`)."""
    rows = [method.hypers(optimizer, group, step) for group in optimizer.param_groups]
    return torch.tensor([row + [0.0] * (NUM_HYPERS - len(row)) for row in rows], dtype=torch.float32)


def update_tables(optimizer: Any) -> list[Tiles]:
    """A table for each dtype of the trained parameters, with their state, kept until a tensor moves."""
    for target, group in zip(optimizer._targets, optimizer._groups, strict=True):
        optimizer._allocate(target.tensor, group)
    addresses = [
        tensor.data_ptr()
        for target in optimizer._targets
        for tensor in (target.tensor, *optimizer.state[target.tensor].values())
        if isinstance(tensor, Tensor)
    ]
    kept: tuple[list[int], list[Tiles]] | None = optimizer.__dict__.get("_tables")
    if kept is not None and kept[0] == addresses:  # the tables hold their tensors, so no address is used again
        return kept[1]
    pieces: dict[torch.dtype, list[Piece]] = {}
    group_index = {id(group): i for i, group in enumerate(optimizer.param_groups)}
    for target, group in zip(optimizer._targets, optimizer._groups, strict=True):
        p = target.tensor
        state: list[Tensor] = []
        for name in optimizer._STATE:
            stored = optimizer.state[p][name]
            state += [stored, optimizer.state[p].get(f"{name}_scale", stored)]
        piece = Piece(p.detach(), target.id, 0, group_index[id(group)], tuple(state))
        pieces.setdefault(p.dtype, []).append(piece)
    tables = [Tiles(same) for same in pieces.values()]
    optimizer.__dict__["_tables"] = addresses, tables
    return tables


def _on_device(direction: Any, values: list[float], device: torch.device) -> tuple[Tensor, Tensor]:
    words = launch.control_words(direction.seed, direction.step, direction.draw)
    return (
        torch.tensor(words, dtype=torch.int64).to(device),
        torch.tensor(values, dtype=torch.float32).to(device),
    )
