"""How one step of a case is made: by the optimizer, or by the engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import cycle
from typing import Any

import torch
from torch import Tensor, nn

from helene.engine import Engine
from tests.paths import models
from tests.paths.cases import Case, Run

Step = Callable[[int, dict[str, Tensor]], Any]  # (number of the step, batch) -> its loss
Attach = Callable[[Case, nn.Module, Any], Step]

RING = {"scratch_bytes": 1 << 12, "unit_bytes": 700}


def by_optimizer(
    case: Case, model: nn.Module, optimizer: Any, disturb: float = 0.0, turns: tuple[float, ...] = ()
) -> Step:
    """``optimizer.step(closure)``; each loss is off by a share of up to ``disturb``, those of probes by ``turns``."""
    generator, shares = torch.Generator().manual_seed(3), cycle(turns)

    def off(loss: Callable[[], Tensor]) -> Tensor:
        share = disturb * (2.0 * torch.rand((), generator=generator, dtype=torch.float64) - 1.0)
        if turns and not torch.is_grad_enabled():
            share = next(shares)
        return loss() * (1.0 + share)

    def step(t: int, batch: dict[str, Tensor]) -> Any:
        closure = partial(models.loss, model, batch)
        own = models.batch_of(t, 1, str(batch["ids"].device))
        more = models.curvature_closure(case.source(t), model, own)
        if disturb:
            closure = partial(off, closure)
        if turns and case.source(t) == "spsa_own_batch":
            more = partial(off, more)
        return optimizer.step(closure, more) if more else optimizer.step(closure)

    return step


class ByEngine:
    """``engine.step(batch)``; steps 5 to 8 by ``optimizer.step`` where ``mixed``."""

    def __init__(self, run: Run, mixed: bool = False, **options: Any) -> None:
        self.run, self.mixed, self.options = run, mixed, options
        self.engine: Any = None

    def __call__(self, case: Case, model: nn.Module, optimizer: Any) -> Step:
        self.flush()
        self.engine = Engine(model, optimizer, models.loss, **self.options)
        plainly = by_optimizer(case, model, optimizer)

        def step(t: int, batch: dict[str, Tensor]) -> Any:
            if self.mixed and 5 <= t <= 8:
                return plainly(t, batch)
            own = models.batch_of(t, 1, str(batch["ids"].device))
            value = self.engine.step(batch, models.curvature_closure(case.source(t), model, own))
            self.run.how.add((self.engine.mode, self.engine.reason))
            return value

        return step

    def flush(self) -> None:
        if self.engine is not None:
            self.engine.flush()
