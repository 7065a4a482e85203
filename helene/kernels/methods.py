r"""Which optimizers have a fused update, and what their kernel needs to know.

A method is recognised by its exact class: a subclass may compute something else. Hyper-parameters are combined on the
host in double precision, as Python does in `helene.functional`, and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from helene import functional
from helene.kernels.tiles import Piece, Tiles, tables_of

SGD, HELENE, MOMENTUM, SIGN, ADAM, LION, SGD_PLAIN = range(7)  # the codes of helene.kernels.update
NONE, FLOAT32, BFLOAT16, SIGNED, UNSIGNED = range(5)
NUM_HYPERS = 12


class Method(NamedTuple):
    """A fused update: its code in the kernel, and the hyper-parameters of a group at a step in the kernel's order."""

    code: int
    hypers: Callable[[Any, dict[str, Any], int], list[float]]

    def rows(self, optimizer: Any, step: int) -> Tensor:
        """Hyper-parameters of a step, float32, shape (groups, `NUM_HYPERS`)."""
        rows = [self.hypers(optimizer, group, step) for group in optimizer.param_groups]
        return torch.tensor([row + [0.0] * (NUM_HYPERS - len(row)) for row in rows], dtype=torch.float32)

    def pieces(self, optimizer: Any) -> list[Piece]:
        """Each trained parameter with its state, which is allocated if need be."""
        group_index = {id(group): i for i, group in enumerate(optimizer.param_groups)}
        pieces = []
        for target, group in zip(optimizer._targets, optimizer._groups, strict=True):
            p = target.tensor
            optimizer._allocate(p, group)
            state: list[Tensor] = []
            for name in optimizer._STATE:
                stored = optimizer.state[p][name]
                state += [stored, optimizer.state[p].get(f"{name}_scale", stored)]
            pieces.append(Piece(p.detach(), target.id, 0, group_index[id(group)], tuple(state)))
        return pieces

    def tables(self, optimizer: Any) -> list[Tiles]:
        """A table for each dtype and device of the trained parameters, with their state, kept until a tensor moves."""
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
        tables = tables_of(self.pieces(optimizer))
        optimizer.__dict__["_tables"] = addresses, tables
        return tables


def method_of(optimizer: Any) -> Method | str:
    """The fused update of an optimizer as it is configured, or the reason why there is none."""
    kind = type(optimizer)
    method = _METHODS.get(f"{kind.__module__}.{kind.__qualname__}")
    if method is None:
        return f"{kind.__name__} has no fused update"
    group = optimizer.param_groups[0]
    if group.get("distribution", "gaussian") != "gaussian":
        return f"directions are {group['distribution']}, the kernels draw gaussian ones"
    if group.get("num_directions", 1) != 1 or group.get("direction_per_layer"):
        return "a step has several directions, the kernels take one"
    if group.get("curvature", "none") not in ("none", "spsa"):
        return f"the curvature source {group['curvature']!r} is evaluated apart"
    if any("floor_rule" in g for g in optimizer.param_groups):
        return "a floor is a function of the curvature"
    if len({(g.get("rounding"), g.get("state_dtype")) for g in optimizer.param_groups}) > 1:
        return "groups differ in their rounding or state_dtype"
    for target in optimizer._targets:
        if not target.tensor.is_contiguous():
            return f"parameter {target.name} is not contiguous"
        if target.tensor.dtype == torch.float64:
            return f"parameter {target.name} is float64, the kernels compute in float32"
    if method.code == SGD and not any(g["weight_decay"] for g in optimizer.param_groups):
        return method._replace(code=SGD_PLAIN)
    return method


def kind_of(stored: Tensor) -> int:
    """The kernel's code for how a state tensor is stored."""
    kinds = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16, torch.int8: SIGNED, torch.uint8: UNSIGNED}
    return kinds[stored.dtype]


def _decays(group: dict[str, Any]) -> tuple[float, float]:
    """lr and lr · weight_decay."""
    return float(group["lr"]), float(group["lr"]) * group["weight_decay"]


def _sgd(optimizer: Any, group: dict[str, Any], step: int) -> list[float]:
    return [float(group["lr"]), group["weight_decay"]]


def _helene(optimizer: Any, group: dict[str, Any], step: int) -> list[float]:
    estimates = optimizer._estimates_at(step)
    return [
        *_decays(group),
        group["beta1"],
        functional.anneal(step, group["beta1"], group["anneal_horizon"]),
        group["gamma"],
        group["floor"],
        group["denominator_eps"],
        optimizer._correction({**group, "step": step}),
        1.0 if estimates else 0.0,
        group["beta2"],
        1.0 - group["beta2"],
        float(group["batch_size"] or 0),
    ]


def _momentum(optimizer: Any, group: dict[str, Any], step: int) -> list[float]:
    return [*_decays(group), group["momentum"]]


def _sign(optimizer: Any, group: dict[str, Any], step: int) -> list[float]:
    return list(_decays(group))


def _adam(optimizer: Any, group: dict[str, Any], step: int) -> list[float]:
    beta1, beta2, coupled = group["beta1"], group["beta2"], optimizer._COUPLED
    lr, decay = _decays(group)
    return [
        lr * functional.bias_correction(beta1, step),
        0.0 if coupled else decay,
        beta1,
        1.0 - beta1,
        beta2,
        1.0 - beta2,
        math.sqrt(functional.bias_correction(beta2, step)),
        group["denominator_eps"],
        group["weight_decay"] if coupled else 0.0,
    ]


def _lion(optimizer: Any, group: dict[str, Any], step: int) -> list[float]:
    return [*_decays(group), group["beta1"], 1.0 - group["beta1"], group["beta2"], 1.0 - group["beta2"]]


_METHODS = {
    "helene.optimizers.mezo.MeZO": Method(SGD, _sgd),
    "helene.optimizers.helene.Helene": Method(HELENE, _helene),
    "helene.optimizers.momentum.ZOMomentum": Method(MOMENTUM, _momentum),
    "helene.optimizers.sign.ZOSign": Method(SIGN, _sign),
    "helene.optimizers.sign.ZOScalarSign": Method(SGD, _sgd),
    "helene.optimizers.adam.ZOAdam": Method(ADAM, _adam),
    "helene.optimizers.adam.ZOAdamW": Method(ADAM, _adam),
    "helene.optimizers.lion.ZOLion": Method(LION, _lion),
}
