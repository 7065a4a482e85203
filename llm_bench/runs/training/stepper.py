"""One training step, captured where the engine is there, plain otherwise; forwards are counted here."""

from __future__ import annotations

import importlib
import importlib.util
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from helene.engine.ranks import Ranks
from llm_bench.data.batches import INDICES, Batch
from llm_bench.runs import methods

Loss = Callable[[Any, Batch], Tensor]
# Sources of curvature that look at a minibatch of their own.
OWN_BATCH = ("spsa_own_batch", "sampled_labels")


class Stepper(Protocol):
    """Makes steps.

    Attributes:
        forwards: Made so far, a backward counted as two; may be set, to go on after an interruption.
        made: Number of steps by how they were made (mode) and why not otherwise (reason); may be set likewise.
    """

    forwards: int
    made: Counter[tuple[str, str]]

    def step(self, batch: Batch, other: Callable[[], Batch]) -> Tensor:
        """One update; returns the loss on its device. ``other`` makes a second minibatch for methods that need one."""

    def settle(self) -> None:
        """Wait for what is under way, so that state and trajectory are those of the last step.

        Raises:
            FloatingPointError: If a loss was not finite.
        """


class _OfBatches:
    """Losses of batches as closures.

    Args:
        module: The model.
        optimizer: Whose curvature may look at a minibatch of its own.
        loss: Of model and batch.
    """

    def __init__(self, module: Any, optimizer: Any, loss: Loss) -> None:
        self.module, self.optimizer, self.loss = module, optimizer, loss
        self.forwards = 0
        self.made: Counter[tuple[str, str]] = Counter()
        self._own_batch = optimizer.param_groups[0].get("curvature") in OWN_BATCH

    def curvature_closure(self, other: Callable[[], Batch]) -> Callable[[], Tensor] | None:
        """The loss of a second minibatch, for sources that need one."""
        return (lambda: self.loss(self.module, other())) if self._own_batch else None


class PlainStepper(_OfBatches):
    """``optimizer.step(closure)``."""

    def step(self, batch: Batch, other: Callable[[], Batch]) -> Tensor:
        """See `Stepper`."""
        next_step = self.optimizer.param_groups[0]["step"] + 1
        value = self.optimizer.step(lambda: self.loss(self.module, batch), self.curvature_closure(other))
        self.forwards += self.optimizer.forwards_at(next_step)
        self.made["plain", "no engine was asked for"] += 1
        return value

    def settle(self) -> None:
        """See `Stepper`."""


class EngineStepper(_OfBatches):
    """``Engine(model, optimizer, loss).step(batch)``, or that of another engine: what a step evaluates is replayed.

    Args:
        module: See `_OfBatches`.
        optimizer: Likewise.
        loss: Likewise.
        compiled: Whether the model's repeated blocks are compiled; of methods of pairs of losses alone.
        capture: Whether steps are captured; of methods that ranks share (`llm_bench.runs.methods.takes_ranks`).
    """

    def __init__(self, module: Any, optimizer: Any, loss: Loss, compiled: bool = False, capture: bool = True) -> None:
        super().__init__(module, optimizer, loss)
        self.engine = _engine_of(module, optimizer, loss, compiled, capture)

    def step(self, batch: Batch, other: Callable[[], Batch]) -> Tensor:
        """See `Stepper`."""
        next_step = self.optimizer.param_groups[0]["step"] + 1
        own = self.curvature_closure(other)
        value = self.engine.step(batch) if own is None else self.engine.step(batch, own)
        self.forwards += self.optimizer.forwards_at(next_step)
        self.made[self._mode, self.engine.reason] += 1
        return value

    @property
    def _mode(self) -> str:
        """The engine's, and what a graph holds beside two forwards as they are."""
        if self.engine.mode != "graph":
            return str(self.engine.mode)
        if getattr(self.engine, "doubled", False):
            return "graph of the doubled batch"
        return "compiled graph" if getattr(self.engine, "compiled", False) else "graph"

    def settle(self) -> None:
        """See `Stepper`."""
        self.engine.flush()


def _engine_of(module: Any, optimizer: Any, loss: Loss, compiled: bool, capture: bool) -> Any:
    from helene.engine import Engine
    from helene.engine.gradients import GradientEngine
    from helene.engine.groups import GroupEngine
    from helene.engine.spreads import SpreadEngine
    from helene.engine.tangents import TangentEngine
    from helene.optimizers import FZOO, ForwardGrad, GroupedMeZO
    from helene.steps.first import FirstOrder

    if isinstance(optimizer, GroupedMeZO):
        return GroupEngine(module, optimizer, loss, doubled=INDICES, capture=capture)
    if isinstance(optimizer, FirstOrder):
        return GradientEngine(module, optimizer, loss)
    if isinstance(optimizer, ForwardGrad):
        return TangentEngine(module, optimizer, loss)
    if isinstance(optimizer, FZOO):
        return SpreadEngine(module, optimizer, loss)
    return Engine(module, optimizer, loss, compile=compiled, capture=capture)


def engine_available() -> bool:
    """Whether steps can be captured here."""
    return torch.cuda.is_available() and importlib.util.find_spec("helene.engine") is not None


def make_stepper(
    module: Any, optimizer: Any, loss: Loss, method: str, *, engine: bool | Literal["compiled"]
) -> Stepper:
    """The stepper of a run.

    Raises:
        ValueError: If the engine is asked for and is not there, or the method has no captured or no compiled step.
    """
    if not engine and Ranks().size > 1:  # the exchange of losses is the engine's
        return EngineStepper(module, optimizer, loss, capture=False)
    if not engine:
        return PlainStepper(module, optimizer, loss)
    if not engine_available():
        raise ValueError("engine = true needs a CUDA device and helene.engine; set engine = false")
    if not methods.captured(method):
        reason = importlib.import_module("helene.engine.reasons").not_pairs(optimizer.plan())
        raise ValueError(f"{method} has no captured step ({reason}); set engine = false")
    if engine == "compiled" and not methods.takes_compiled(method):
        raise ValueError(f"{method} has no compiled step; set engine = true")
    return EngineStepper(module, optimizer, loss, engine == "compiled")
