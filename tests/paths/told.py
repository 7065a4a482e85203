"""What a step has measured: heard of a path, and told to the reference, which then steps by it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from helene.steps.base import Base

Slopes = dict[int, list[float]]  # what each step has measured


@contextmanager
def heard(slopes: Slopes) -> Iterator[None]:
    """Inside, every step adds what it moves by."""
    keep = Base._keep

    def listening(me: Any, plan: Any, scalars: list[float], statistics: Any) -> None:
        if scalars:
            slopes[plan.step] = list(scalars)
        keep(me, plan, scalars, statistics)

    with patch.object(Base, "_keep", listening):
        yield


@contextmanager
def told(slopes: Slopes, disturb: float, own: Slopes) -> Iterator[None]:
    """Inside, steps move by these slopes, off by a share of up to ``disturb``; what they measure goes to ``own``."""
    finish, generator = Base.finish, torch.Generator().manual_seed(3)

    def telling(me: Any, plan: Any, measured: Any) -> None:
        mine, given = measured.scalars, slopes.get(plan.step, [])
        if len(given) == len(mine):
            shares = disturb * (2.0 * torch.rand(len(given), generator=generator, dtype=torch.float64) - 1.0)
            measured = measured._replace(scalars=[c * (1.0 + s) for c, s in zip(given, shares.tolist(), strict=True)])
        finish(me, plan, measured)
        own[plan.step] = mine

    with patch.object(Base, "finish", telling):
        yield
