"""Updates that kernels make within a replay: what the device must know of a step, and what the host learns later."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from helene import functional
from helene.kernels.control import Control
from helene.kernels.tiles import Tiles
from helene.steps.fused import launches, methods
from helene.steps.plan import StepPlan
from helene.steps.zeroth import ZerothOrder

HISTORY = 1024  # slopes kept on the device


class Updates:
    """Key, radius and hyper-parameters of the current step on the device, sent in one copy; slopes of the last steps.

    A captured step reads them there, so that it is replayed without the host's word.

    Args:
        optimizer: Whose updates these are.
        no_kernels: Why there are none for its parameters, in one line; empty where there are.

    Attributes:
        control: What kernels read.
        key: The control's.
        values: The control's.
    """

    def __init__(self, optimizer: ZerothOrder, no_kernels: str) -> None:
        self._optimizer, self._no_kernels = optimizer, no_kernels
        self._device = optimizer.targets[0].tensor.device
        self._on_gpu = self._device.type == "cuda"
        self.control = Control(self._device, len(optimizer.param_groups))
        self.key, self.values = self.control.key, self.control.values
        self._slopes = torch.zeros(HISTORY, dtype=torch.float64, device=self._device)  # of step t at t mod HISTORY
        self._broken = torch.zeros(1, dtype=torch.int64, device=self._device)  # first step of losses not finite, or 0
        self._broken_host = torch.zeros(1, dtype=torch.int64, pin_memory=self._on_gpu)
        self._asked: Any = None  # an event after the copy of `_broken` to the host
        self._method: methods.Fused | None = None
        self._tables: list[Tiles] = []
        self._signs = False
        self._pending: list[StepPlan] = []  # replayed steps that the optimizer has not been told of

    def send(self, plan: StepPlan, radius: float) -> str:
        """Send a step, in the current stream's order; why its update cannot be the graph's, in one line, or nothing."""
        method = self._fused(plan)
        reason, hypers = (method, None) if isinstance(method, str) else ("", method.rows(plan))
        key = plan.seed, plan.step, 0
        self.control.send(key, radius, (0.0, 0.0, float(bool(reason))), hypers)
        return reason

    def prepare(self, plan: StepPlan) -> None:
        """Before a capture: allocate the state, and say where it lies."""
        settled = plan if not plan.asks_floors else plan.with_floors({i: 1.0 for i in range(len(plan.rules))})
        method = self._fused(settled._replace(source=None))
        self._method = method if isinstance(method, methods.Fused) else None
        self._tables = launches.tables(self._optimizer, plan) if self._method else []
        self._signs = self._optimizer.direction(plan).signs

    def _fused(self, plan: StepPlan) -> methods.Fused | str:
        if not plan.measurement.slope_is_all:
            return f"{plan.method} measures more than one pair of losses"
        return self._no_kernels or methods.fused(plan, self._optimizer.targets)

    def enqueue(self, losses: Tensor, ranks: int) -> None:
        """What follows the forwards: c from the losses (sums over the ranks), and the update.

        A step whose numbers are not finite moves nothing.
        """
        pair, step = losses.double() / ranks, self.key[1:2]
        slope = functional.projected_gradient(pair[0], pair[1], self.control.eps[0])
        fine, by_host = torch.isfinite(slope) & torch.isfinite(pair).all(), self.values[3:4]
        self.values[1:2] = torch.where(fine, slope, torch.zeros_like(slope)).float()
        self.values[2:3] = fine.float() * (1.0 - by_host)
        self._slopes.index_copy_(0, torch.remainder(step, HISTORY), slope.view(1))
        seen = fine | (self._broken > 0) | (by_host > 0)  # the host looks at its own steps
        self._broken.copy_(torch.where(seen, self._broken, step))
        if self._method is None:
            return
        from helene.kernels import launch

        code, hypers = self._method.code, self.control.hypers
        for tiles in self._tables:
            launch.update(tiles, code, self.key, self.values, hypers, signs=self._signs)

    def replayed(self, plan: StepPlan) -> None:
        """Count a step whose update is the device's; `settle` learns its slope."""
        if self._asked is None and self._on_gpu:
            self._broken_host.copy_(self._broken, non_blocking=True)
            self._asked = torch.cuda.Event()
            self._asked.record()
        for group in self._optimizer.param_groups:
            group["step"] = plan.step
        self._pending.append(plan)

    def refused(self, plan: StepPlan) -> None:
        """Count a step that moves nothing as the device does: the host has found that its losses are not finite."""
        self._slopes[plan.step % HISTORY] = math.nan
        if not self._broken:
            self._broken.fill_(plan.step)
        self.replayed(plan)

    def look_at(self, plan: StepPlan) -> None:
        """Flush after a step at which all ranks do, however each has made it: they have to stop at the same one.

        Raises:
            FloatingPointError: If a loss was not finite, and the trajectory is recorded or the step a multiple of
                `HISTORY`.
        """
        if self._optimizer.trajectory is not None or plan.step % HISTORY == 0:
            self.flush()

    def follow(self, before: Updates) -> None:
        """Take over what has not been told yet of steps before the model or the optimizer changed."""
        self._broken.copy_(before._broken)

    def settle(self) -> None:
        """Bring the optimizer's statistics and trajectory up to date."""
        if not self._pending:
            return
        slopes = self._slopes.tolist()
        for plan in self._pending:
            slope = slopes[plan.step % HISTORY]
            self._optimizer.hear(plan, [slope] if math.isfinite(slope) else [])
        self._pending.clear()

    def flush(self) -> None:
        """Settle, wait, and raise FloatingPointError if a loss was not finite."""
        self.settle()
        self._asked = None
        self._refuse(int(self._broken.item()))

    def raise_if_broken(self) -> None:
        """Raise FloatingPointError if a loss is known not to have been finite; waits for nothing."""
        if self._asked is not None and self._asked.query():
            self._asked = None
            self._refuse(int(self._broken_host[0]))

    def _refuse(self, step: int) -> None:
        if step:
            self._broken.zero_()
            raise FloatingPointError(
                f"a loss of step {step} was not finite; it and later ones like it moved nothing; a smaller lr or "
                "eps or a wider dtype helps"
            )
