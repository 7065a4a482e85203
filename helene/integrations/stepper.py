"""The step of a training loop that belongs to others: by the engine where it can be captured, else as it is."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from typing import Any, Literal

import torch
from torch import Tensor, nn

from helene.engine import Engine, reasons
from helene.steps.base import Base, Delegated
from helene.steps.zeroth import ZerothOrder

UseEngine = Literal["auto"] | bool
WINDOW = 64  # engine's steps after which it is asked whether they were worth it
_logger = logging.getLogger(__name__)


class Stepper:
    """Makes the steps of an optimizer whose ``step()`` is called by a framework.

    Parameters, state, hooks and schedulers see the same either way, but that a loss that is not finite is told by one
    of the steps after a captured one, or by `flush`.

    Args:
        model: The module that the loss reads.
        optimizer: The optimizer.
        loss: Gives the scalar loss of model and batch; it is to depend on nothing else.
        use_engine: True has the engine or an error, False never has it.
        options: Keyword arguments of `helene.engine.Engine`.
        unstable: Why the loss may depend on more than model and batch, in one line. Only ``use_engine=True`` takes
            such a loss to the engine.

    Attributes:
        engine: What makes the steps, or None.
        reason: Why the engine does not make them, in one line; empty where it does.

    Raises:
        ValueError: If ``use_engine`` is none of its values, or is True where no step can be captured.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Base,
        loss: Callable[[nn.Module, Any], Tensor],
        *,
        use_engine: UseEngine = "auto",
        options: Mapping[str, Any] | None = None,
        unstable: str = "",
    ) -> None:
        if use_engine not in ("auto", True, False):
            raise ValueError(f"use_engine must be 'auto', True or False, got {use_engine!r}")
        self.model, self.optimizer, self.loss = model, optimizer, loss
        self._forced, self._made, self._captured = use_engine is True, 0, 0
        self._batch: Any = None
        self._hook: Any = None
        self.engine: Engine | None = None
        options = dict(options or {})
        self.reason = "use_engine is False" if use_engine is False else not_captured(model, optimizer, options)
        if self._forced and self.reason:
            raise ValueError(f"use_engine is True, but {self.reason}; use_engine='auto' makes plain steps there")
        self.reason = self.reason or ("" if self._forced else unstable)
        if not self.reason:
            assert isinstance(optimizer, ZerothOrder)
            self.engine = Engine(model, optimizer, loss, **options)
        elif use_engine is not False:
            self._tell()

    @property
    def mode(self) -> str:
        """How steps are made: "engine" or "plain"."""
        return "plain" if self.engine is None else "engine"

    def prepare(self, batch: Any) -> None:
        """Have the optimizer's next ``step()`` make the step of a batch, whatever closure it is given."""
        self.discard()
        self._batch = batch
        self._hook = self.optimizer.register_step_pre_hook(self._inject)

    def discard(self) -> None:
        """Forget a batch whose step has not been made."""
        if self._hook is not None:
            self._hook.remove()
        self._hook = self._batch = None

    def flush(self, quiet: bool = False) -> None:
        """Bring the optimizer's statistics and trajectory up to date, and wait.

        Raises:
            FloatingPointError: If a loss was not finite, unless ``quiet``.
        """
        if self.engine is not None:
            with suppress(FloatingPointError) if quiet else nullcontext():
                self.engine.flush()

    def _inject(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        batch, given = self._batch, args[1] if len(args) > 1 else kwargs.get("closure")
        self.discard()
        plain = given or (lambda: self.loss(self.model, batch))
        return (optimizer, plain if self.engine is None else Delegated(lambda: self._by_engine(batch, plain))), {}

    def _by_engine(self, batch: Any, plain: Callable[[], Any]) -> Tensor | Callable[[], Any]:
        """The loss of a step that the engine has made, or a closure for the optimizer to make it from."""
        assert self.engine is not None
        try:
            loss = self.engine.step(batch)
        except ValueError as error:  # before anything has moved
            if self._forced:
                raise
            return self._give_up(str(error).splitlines()[0], plain)
        self._made += 1
        self._captured += self.engine.mode == "graph"
        if not self._forced and (reason := self._not_worth_it()):
            self._give_up(reason, plain)
        return loss

    def _not_worth_it(self) -> str:
        assert self.engine is not None
        if self.engine.plain_reason or "captured" in self.engine.reason:
            return self.engine.plain_reason or self.engine.reason
        if self._made < WINDOW:
            return ""
        made, captured = self._made, self._captured
        self._made = self._captured = 0
        if 2 * captured >= made:
            return ""
        return (
            f"{made - captured} of {made} batches had a shape that was new or had been forgotten; pad to few lengths "
            "(pad_to_multiple_of of transformers' collators)"
        )

    def _give_up(self, reason: str, plain: Callable[[], Any]) -> Callable[[], Any]:
        self.flush()
        self.engine, self.reason = None, reason
        self._tell()
        return plain

    def _tell(self) -> None:
        level = logging.WARNING if torch.cuda.is_available() else logging.INFO
        _logger.log(level, "steps are made by optimizer.step, without the engine: %s", self.reason)


class HasStepper:
    """What the trainers of all frameworks tell of their steps, and do as these end."""

    _stepper: Stepper | None = None

    @property
    def step_mode(self) -> str:
        """How steps are made: "engine" or "plain" (``optimizer.step``); empty before the first."""
        return "" if self._stepper is None else self._stepper.mode

    @property
    def step_reason(self) -> str:
        """Why the engine does not make them, in one line; empty where it does."""
        return "" if self._stepper is None else self._stepper.reason

    def _forget_steps(self) -> None:
        """What an interrupted run has kept for its next step is not the next run's."""
        if self._stepper is not None:
            self._stepper.discard()
            self._stepper = None

    def _flush(self, quiet: bool = False) -> None:
        if self._stepper is not None:
            self._stepper.flush(quiet)


def not_captured(model: nn.Module, optimizer: Base, options: Mapping[str, Any]) -> str:
    """Why the engine would not capture an optimizer's steps, in one line."""
    if not isinstance(optimizer, ZerothOrder):
        return f"{type(optimizer).__name__} takes gradients; {reasons.GRADIENTS} captures its steps"
    if reason := reasons.plain(model, optimizer.foresee()):
        return reason
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    ranks = torch.distributed.get_world_size() if distributed else 1
    if ranks > 1:
        return f"{ranks} processes share the run; give helene.engine.Engine each one's share of the batch"
    if options.get("capture") == "repeat":
        return ""
    if optimizer.targets[0].tensor.device.type != "cuda":
        return "no CUDA device holds the parameters"
    return reasons.not_fused(optimizer.targets)
