"""Checks of numbers that name the value, the limit and the way out. A tensor stands for one number a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

LARGEST = torch.finfo(torch.float32).max


def plain(value: Any) -> Any:
    """Numpy's numbers and tensors of one element as Python's numbers; anything else as it is."""
    if type(value) in (bool, int, float, str, type(None)):  # numpy's float64 is a float too
        return value
    if isinstance(value, Tensor):
        return value.item() if value.numel() == 1 else value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    return value.item() if type(value).__module__ == "numpy" and hasattr(value, "item") else value


def positive(value: Any, name: str, advice: str) -> None:
    """Raise ValueError unless value is a number above 0 (infinity is allowed)."""
    if not _holds(value, lambda v: v > 0):
        raise ValueError(f"{name} must be positive, got {value!r}; {advice}")


def finite_positive(value: Any, name: str, advice: str) -> None:
    """Raise ValueError unless value is a number above 0 that is finite in float32."""
    positive(value, name, advice)
    nonnegative(value, name)


def nonnegative(value: Any, name: str) -> None:
    """Raise ValueError unless value is a number, 0 or above, that is finite in float32."""
    if not _holds(value, lambda v: (v >= 0) & (v < math.inf)):
        raise ValueError(f"{name} must be a finite number, 0 or above, got {value!r}")
    if not _holds(value, lambda v: v <= LARGEST):
        raise ValueError(f"{name} must be at most {LARGEST:.3g}, the largest float32, got {value!r}")


def fraction(value: Any, name: str) -> None:
    """Raise ValueError unless value lies in [0, 1)."""
    if not _holds(value, lambda v: (v >= 0) & (v < 1)):
        raise ValueError(f"{name} must be in [0, 1), got {value!r}; 0.9 is usual")


def whole(value: Any, name: str, least: int, below: int, advice: str) -> None:
    """Raise ValueError unless value is an integer in [least, below)."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be an integer, {least} or above, got {value!r}; {advice}")
    if value >= below:
        raise ValueError(f"{name} must be below {below}, got {value!r}; {advice}")


def one_of(value: Any, name: str, choices: Sequence[Any]) -> None:
    """Raise ValueError unless value is one of the choices."""
    if not any(value is choice or (type(value) is type(choice) and value == choice) for choice in choices):
        raise ValueError(f"{name} must be one of {', '.join(map(str, choices))}; got {value!r}")


def _holds(value: Any, test: Callable[[Any], Any]) -> bool:
    if isinstance(value, Tensor):
        return bool(torch.all(test(value)))
    return isinstance(value, int | float) and not isinstance(value, bool) and bool(test(value))
