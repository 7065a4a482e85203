"""Updates that kernels make within a replay: at once, or owed to the copies of the next step."""

from __future__ import annotations

import torch
from torch import Tensor

from helene.engine.control import HISTORY, Control
from helene.engine.copies import Deferred
from helene.kernels.methods import NUM_HYPERS, Method, method_of
from helene.kernels.tiles import Tiles
from helene.optimizers.zeroth import ZerothOrder
from helene.undo import deferred_interrupts


class FusedUpdates:
    """What the device does with the losses of a captured step, and what the host learns of it later.

    Args:
        optimizer: Whose updates these are.
        control: What the device knows of the current step.
        deferred: Whether the update of a captured step is made by the next one.
    """

    def __init__(self, optimizer: ZerothOrder, control: Control, deferred: bool) -> None:
        self._optimizer, self._control, self._deferred = optimizer, control, deferred
        self._method: Method | str = method_of(optimizer)
        self._tables: list[Tiles] = []
        self._owes = False
        self._pending: list[int] = []  # replayed steps that the optimizer has not been told of

    @property
    def missing(self) -> str:
        """Why there are none and the optimizer updates by itself, in one line; empty where there are."""
        return "" if isinstance(self._method, Method) else self._method

    def begin(self, step: int, captured: bool) -> None:
        """Send a step to the device. A step that is not captured wants all updates before it made."""
        if not captured:
            self.settle()
        elif self._deferred:
            self._control.shift()
        groups = self._optimizer.param_groups
        hypers = torch.zeros(len(groups), NUM_HYPERS)
        if isinstance(self._method, Method):
            hypers = self._method.rows(self._optimizer, step)
        self._control.send(groups[0]["seed"], step, 0, groups[0]["eps"], hypers.numpy())

    def prepare(self) -> Deferred | None:
        """Before a capture: allocate the state. Gives the update that the captured copies make, if they do."""
        if not isinstance(self._method, Method):
            return None
        pieces = self._method.pieces(self._optimizer)
        self._tables = self._method.tables(self._optimizer)
        if not self._deferred:
            return None
        return Deferred(self._method.code, self._stochastic, self._control.before, pieces)

    def finish(self, losses: Tensor, ranks: int) -> None:
        """Enqueue what follows the forwards: c from the losses (sums over the ranks), and the update unless owed."""
        self._control.finish(losses, ranks)
        if not self._deferred:
            self._make()

    def replayed(self, step: int) -> None:
        """Note a step whose update the device has made or owes.

        Raises:
            FloatingPointError: If the trajectory is recorded, or many steps wait, and a loss was not finite.
        """
        self._owes = self._deferred
        self._control.look()
        for group in self._optimizer.param_groups:
            group["step"] = step
        self._pending.append(step)
        if self._optimizer.trajectory is not None or len(self._pending) == HISTORY:
            self.flush()

    def pay(self) -> None:
        """Make the update that a deferred step still owes; waits for nothing."""
        with deferred_interrupts():
            if self._owes:
                self._owes = False
                self._make()
                self._control.values[2:3].zero_()  # so that the next step does not make it again

    def settle(self) -> None:
        """Pay, and bring the optimizer's statistics and trajectory up to date."""
        self.pay()
        if not self._pending:
            return
        optimizer, slopes = self._optimizer, self._control.slopes.tolist()
        for step in self._pending:
            slope = slopes[step % HISTORY]
            optimizer._statistics.add(optimizer._coefficients([slope]))
            recorded = optimizer.trajectory
            if recorded is not None and step >= recorded.header["first_step"]:
                recorded.append(optimizer, step, [slope])
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

    @property
    def _stochastic(self) -> bool:
        return bool(self._optimizer.param_groups[0]["rounding"] == "stochastic")

    def _make(self) -> None:
        """Enqueue the update of the current step."""
        if not isinstance(self._method, Method):
            return
        from helene.kernels import launch

        control = self._control
        for tiles in self._tables:
            launch.update(
                tiles,
                self._method.code,
                control.control,
                control.values,
                control.hypers,
                stochastic=self._stochastic,
            )
