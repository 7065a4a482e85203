r"""The arithmetic of every update: pure functions on tensors, of which `helene.rules` are composed.

Everything broadcasts, so an optimizer (a chunk of a parameter), the batched simulator (seeds x step sizes x dimension)
and a kernel's reference use the same lines. Nothing here draws random numbers, holds state or looks at a model.
Symbols: theta parameters, z direction, c projected gradient, g gradient estimate, m momentum, h curvature, t step (the
first is 1). Line numbers are those of Algorithm 1 of the HELENE paper.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

import torch
from torch import Tensor

Number = TypeVar("Number", float, Tensor)


def projected_gradient(loss_plus: Number, loss_minus: Number, eps: float | Tensor) -> Number:
    r"""c = (L⁺ − L⁻) / (2 eps), the slope of the loss along a direction (SPSA, section 2.1).

    On a quadratic this is zᵀ∇L(theta) for every eps; in general the error is O(eps²) from truncation plus
    O(u |L| / eps) from rounding, u the unit roundoff of the losses' dtype.
    """
    return (loss_plus - loss_minus) / (2.0 * eps)  # type: ignore[return-value]


def anneal(step: int, beta1: float, horizon: float) -> float:
    r"""alpha(t) = beta1 + (1 − beta1) exp(−t / T), the subroutine Anneal.

    Falls from almost 1 to beta1, never to 0: with a constant gradient g the momentum settles at alpha g / (1 − beta1),
    so the anneal scales the effective step by a factor between beta1 and 1. An infinite horizon gives 1 for every t.
    """
    return beta1 + (1.0 - beta1) * math.exp(-step / horizon)


def momentum(m: Tensor, g: Tensor, beta1: float | Tensor, alpha: float | Tensor = 1.0) -> Tensor:
    r"""m ← beta1 m + alpha g (line 7); alpha = 1 is heavy ball, alpha = 1 − beta1 the exponential moving average."""
    return beta1 * m + alpha * g


def is_curvature_step(step: int, interval: int, first: int = 1) -> bool:
    r"""Whether h is estimated at this step: at t = first, then every ``interval`` steps (line 8).

    Departure: the paper's t mod k = 1 never holds for k = 1; this reading agrees with it for every k > 1 and means
    "each step" for k = 1.
    """
    return step >= first and (step - first) % interval == 0


def a_gnb(g: Tensor, batch_size: int | Tensor) -> Tensor:
    r"""B ĝ ⊙ ĝ, the estimate that Algorithm 2 (A-GNB) returns, for ĝ the gradient of a minibatch's mean loss."""
    return batch_size * g * g


def curvature_ema(h: Tensor, estimate: Tensor, beta2: float | Tensor) -> Tensor:
    r"""h ← beta2 h + (1 − beta2) ĥ (line 10), h on the right being the last one estimated and h_0 = 0."""
    return beta2 * h + (1.0 - beta2) * estimate


def bias_correction(beta2: float, num_estimates: int) -> float:
    r"""1 / (1 − beta2ⁿ), by which h is multiplied after n estimates to undo the pull of h_0 = 0.

    Adam's correction; not in the paper.
    """
    return 1.0 / (1.0 - beta2**num_estimates)


def adam_scales(lr: float | Tensor, beta1: float, beta2: float, step: int) -> tuple[Any, float]:
    r"""lr / (1 − beta1^t) and 1 / √(1 − beta2^t): what multiplies m and √v in Adam's step t."""
    return lr * bias_correction(beta1, step), math.sqrt(bias_correction(beta2, step))


def decay(theta: Tensor, lr: float | Tensor, weight_decay: float | Tensor) -> Tensor:
    r"""theta ← theta − lr · weight_decay · theta (line 14), decoupled; the paper calls the coefficient ε."""
    if _is_zero(weight_decay):
        return theta  # the same bits, one pass less
    return theta - lr * weight_decay * theta


def precondition(
    m: Tensor, h: Tensor, gamma: float | Tensor, floor: float | Tensor, denominator_eps: float | Tensor
) -> Tensor:
    r"""m / (gamma · max(h, floor) + denominator_eps), the direction of HELENE's step (line 15).

    The "clip" of the paper is this floor λ_i under the curvature, one per layer: it bounds the step's coordinate by
    |m| / (gamma λ_i); it does not bound h from above.
    """
    floor = torch.as_tensor(floor, dtype=h.dtype, device=h.device)
    return m / (gamma * torch.maximum(h, floor) + denominator_eps)


def descend(theta: Tensor, direction: Tensor, lr: float | Tensor) -> Tensor:
    r"""theta ← theta − lr · direction."""
    return theta - lr * direction


def coupled_decay(g: Tensor, theta: Tensor, weight_decay: float | Tensor) -> Tensor:
    r"""g + weight_decay · theta: the decay as part of the gradient, as torch.optim's SGD and Adam have it."""
    return g if _is_zero(weight_decay) else g + weight_decay * theta


def second_difference(loss_plus: float, loss_minus: float, loss: float, eps: float) -> float:
    r"""|L⁺ + L⁻ − 2 L| / (2 eps²): half the curvature along a direction, without its sign (HiZOO)."""
    return abs(loss_plus + loss_minus - 2.0 * loss) / (2.0 * eps) / eps  # the square of a tiny eps would be 0


def fzoo_weights(losses: list[float], loss: float) -> list[float]:
    r"""(L_i − L) / (N σ), the weights of FZOO's N directions, σ the standard deviation (over N − 1) of the L_i.

    The slopes (L_i − L) / eps divided by their own spread, so that eps cancels (Dang et al. 2025). Equal losses have no
    spread; their weights are 0.
    """
    mean = math.fsum(losses) / len(losses)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in losses) / (len(losses) - 1))
    if deviation == 0.0:
        return [0.0] * len(losses)
    return [(value - loss) / (len(losses) * deviation) for value in losses]


def _is_zero(value: float | Tensor) -> bool:
    """Whether a number is 0, for a tensor every one of its."""
    return not bool(value.any()) if isinstance(value, Tensor) else value == 0.0
