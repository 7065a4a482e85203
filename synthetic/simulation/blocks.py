r"""MeZO on a quadratic, a block of steps at a time.

With H = BᵀB the loss is ½‖p‖² of p = B (θ − θ*), and a step along z is p ← p − lr c y with y = B z and c = p · y. So
the c of a block of steps solve one triangular system, with p as it is before the block,

    c_j + lr Σ_{i<j} (y_i · y_j) c_i = p · y_j,

and each step lowers the loss by lr c² − ½ lr² c² ‖y‖². The rest are products of matrices: p is read twice and written
once a block instead of once a step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Float


def block_of(d: int) -> int:
    """Steps of a block: the loss falls by a factor e^(−2 / d) a step, and must not fall by orders in a block."""
    return min(32, d // 8)


def descend_block(
    p: Float[Tensor, "seeds trials d"],
    y: Float[Tensor, "seeds steps d"],
    lr: float | Float[Tensor, "trials 1"],
) -> Float[Tensor, "seeds trials steps"]:
    """Move p in place along the directions y, one after the other; the loss after each step."""
    gram = torch.bmm(y, y.mT)
    system = gram[:, None] * (lr[..., None] if isinstance(lr, Tensor) else lr)
    slopes = torch.bmm(p, y.mT)[..., None]
    c = torch.linalg.solve_triangular(system, slopes, upper=False, unitriangular=True)[..., 0]
    moves = lr * c
    halves = 0.5 * torch.diagonal(gram, dim1=-2, dim2=-1)[:, None]
    falls = moves * torch.addcmul(c, moves, halves, value=-1)
    start = torch.linalg.vector_norm(p, dim=-1, keepdim=True).square_().mul_(0.5)
    p.baddbmm_(moves, y, alpha=-1)
    return start - falls.cumsum(-1)
