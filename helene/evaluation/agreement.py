"""How far two forwards that compute the same may be apart: by rounding, and not by more."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

TF32_ROUNDING = 2.0**-11


def forward_rounding(model: nn.Module) -> float:
    """The share of a forward's result by which rounding may move it between two ways to compute it.

    A forward is a chain of about as many roundings as it has modules; two of them differ by four standard deviations of
    that at most. In 16 bits that is some percent.
    """
    chain = sum(1 for part in model.modules() if not list(part.children()))
    return 4.0 * _unit(model) * math.sqrt(2.0 * chain)


def check_agreement(model: nn.Module, plain: Sequence[float], others: Sequence[float]) -> None:
    """Make sure that other forwards give the losses of plain ones, up to rounding.

    Plain losses that are not finite say nothing.

    Raises:
        RuntimeError: If they differ.
    """
    pairs = [(a, b) for a, b in zip(plain, others, strict=True) if math.isfinite(a)]
    limit = forward_rounding(model) * max((abs(a) for a, _ in pairs), default=0.0)
    for a, b in pairs:
        if not abs(a - b) <= limit:
            raise RuntimeError(
                f"a loss is {b:.6g} in the place of {a:.6g}, and rounding moves it by {limit:.2g} at most"
            )


def _unit(model: nn.Module) -> float:
    """Half a unit in the last place of the coarsest dtype that a parameter has, or of TF32's products."""
    tf32 = torch.backends.cuda.matmul.allow_tf32
    found = [TF32_ROUNDING for p in model.parameters() if tf32 and p.is_cuda and p.dtype == torch.float32]
    found += [torch.finfo(p.dtype).eps / 2 for p in model.parameters() if p.is_floating_point()]
    return max(found, default=torch.finfo(torch.float32).eps / 2)
