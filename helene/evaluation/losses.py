"""A loss: one number that a closure gives."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Closure = Callable[[], Any]


class Informed:
    """A closure that knows more than its loss, such as by a captured graph; a subclass says what.

    Args:
        loss: The closure.
        known: Gives what it knows.
    """

    known: Any

    def __init__(self, loss: Closure, known: Callable[..., Any]) -> None:
        self.loss, self.known = loss, known

    def __call__(self) -> Any:
        """The loss."""
        return self.loss()


def scalar_loss(value: Any) -> Tensor:
    """A closure's result as a detached floating-point 0-dim tensor; Python's numbers and integers become float64.

    Raises:
        ValueError: If it is None or not one number.
        FloatingPointError: If it is not finite.
    """
    loss = as_loss(value)
    finite(loss)
    return loss


def as_loss(value: Any) -> Tensor:
    """As `scalar_loss`, but that one on a GPU may be anything.

    Raises:
        ValueError: If it is None or not one number.
        FloatingPointError: If it is on the CPU and not finite.
    """
    if value is None:
        raise ValueError("the closure returned None; it must return the loss of one minibatch")
    try:
        loss = torch.as_tensor(value, dtype=torch.float64 if isinstance(value, float) else None).detach()
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"the closure returned a {type(value).__name__}; it must return one number") from None
    loss = one_number(loss, "the closure")
    if not loss.is_floating_point():
        loss = loss.double()  # a count of errors, say: its difference is taken, and means
    if loss.device.type == "cpu":
        finite(loss)
    return loss


def finite(losses: Tensor | Sequence[float]) -> list[float]:
    """The values of losses, flat, in one transfer.

    Raises:
        FloatingPointError: If one is not finite.
    """
    values: list[float] = losses.double().reshape(-1).tolist() if isinstance(losses, Tensor) else list(losses)
    for value in values:
        if not math.isfinite(value):
            raise FloatingPointError(
                f"the loss is {value}; parameters and state are unchanged. A smaller lr or eps or a wider dtype helps; "
                "check_closure(closure) of a zeroth-order optimizer tells whether the closure is at fault"
            )
    return values


def one_number(loss: Tensor, source: str) -> Tensor:
    """A loss as a 0-dim tensor.

    Raises:
        ValueError: If it has not one real element.
    """
    if loss.numel() != 1 or loss.is_complex():
        raise ValueError(f"{source} returned {loss.dtype} of shape {tuple(loss.shape)}; it must return one real number")
    return loss.reshape(())
