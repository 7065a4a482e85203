"""Updates that kernels make within a replay, and what the host learns of them later."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from helene.engine.control import HISTORY, Control
from helene.kernels import methods
from helene.kernels.tiles import Tiles
from helene.optimizers.zeroth import ZerothOrder
from helene.plan import Probing, StepPlan


class FusedUpdates:
    """What the device does with the losses of a captured step, and what the host learns of it later.

    Args:
        optimizer: Whose updates these are.
        control: What the device knows of the current step.
    """

    def __init__(self, optimizer: ZerothOrder, control: Control) -> None:
        self._optimizer, self._control = optimizer, control
        self._method: methods.Fused | None = None
        self._tables: list[Tiles] = []
        self._pending: list[StepPlan] = []  # replayed steps that the optimizer has not been told of

    def begin(self, plan: StepPlan) -> str:
        """Send a step to the device; why its update cannot be the graph's, in one line, or nothing."""
        method, probing = methods.fused(plan, self._optimizer.targets), plan.probing
        assert isinstance(probing, Probing)
        if isinstance(method, methods.Fused):
            hypers, reason = method.rows(plan), ""
        else:
            hypers, reason = torch.zeros(len(plan.rules), methods.NUM_HYPERS), method
        self._control.send(plan.seed, plan.step, probing.eps, hypers.numpy(), by_host=bool(reason))
        return reason

    def prepare(self, plan: StepPlan) -> None:
        """Before a capture: allocate the state, and say where it lies."""
        settled = plan if not plan.asks_floors else plan.with_floors({i: 1.0 for i in range(len(plan.rules))})
        method = methods.fused(settled._replace(source=None), self._optimizer.targets)
        self._method = method if isinstance(method, methods.Fused) else None
        self._tables = methods.tables(self._optimizer, plan) if self._method else []

    def enqueue(self, losses: Tensor, ranks: int) -> None:
        """What follows the forwards: c from the losses (sums over the ranks), and the update."""
        self._control.finish(losses, ranks)
        if self._method is None:
            return
        from helene.kernels import launch

        control = self._control
        for tiles in self._tables:
            launch.update(tiles, self._method.code, control.control, control.values, control.hypers)

    def replayed(self, plan: StepPlan) -> None:
        """Note a step whose update the device has made.

        Raises:
            FloatingPointError: If the trajectory is recorded, or many steps wait, and a loss was not finite.
        """
        self._control.look()
        for group in self._optimizer.param_groups:
            group["step"] = plan.step
        self._pending.append(plan)
        if self._optimizer.trajectory is not None or len(self._pending) == HISTORY:
            self.flush()

    def settle(self) -> None:
        """Bring the optimizer's statistics and trajectory up to date."""
        if not self._pending:
            return
        slopes = self._control.slopes.tolist()
        for plan in self._pending:
            slope = slopes[plan.step % HISTORY]
            self._optimizer.hear(plan, [slope] if math.isfinite(slope) else [])
        self._pending.clear()

    def flush(self) -> None:
        """Settle, wait, and raise FloatingPointError if a loss was not finite."""
        self.settle()
        self.raise_trouble(wait=True)

    def raise_trouble(self, wait: bool = False) -> None:
        """Raise FloatingPointError if a loss is known not to have been finite."""
        step = self._control.trouble(wait) if self._control.device.type == "cuda" else 0
        if step:
            self._control.forgive()
            raise FloatingPointError(
                f"a loss of step {step} was not finite; it and later ones like it moved nothing; a smaller lr or "
                "eps or a wider dtype helps"
            )
