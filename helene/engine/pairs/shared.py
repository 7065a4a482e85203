"""What the steps of all batch shapes have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from helene.engine.pairs.lanes import Worker
from helene.engine.pairs.streams import Streams
from helene.engine.pairs.updates import Updates
from helene.evaluation.compiled import Compiled
from helene.evaluation.directions import Direction, Target


@dataclass
class Shared:
    """What an engine's steps have in common while model and optimizer stay what they are.

    Attributes:
        model: The module that reads the parameters.
        loss: Gives the loss of a batch.
        targets: The trained parameters.
        fused: Whether the Triton kernels are used.
        updates: What the device knows of the current step.
        streams: Where the work goes.
        workers: Two threads, one a forward.
        options: ``unit_bytes`` and ``ring_bytes`` of `schedule_of`.
        compiled: Forwards that recorded steps run in the place of the model's own, or None.
        ring: Scratch memory of the copies.
        pool: Memory of the graphs.
        direction: Key of the current step.
        eps: Radius of the current step.
    """

    model: nn.Module
    loss: Callable[[nn.Module, Any], Any]
    targets: list[Target]
    fused: bool
    updates: Updates
    streams: Streams
    workers: tuple[Worker, Worker]
    options: dict[str, Any]
    compiled: Compiled | None = None
    ring: Tensor | None = None
    pool: Any = None
    direction: Direction = field(default_factory=lambda: Direction(0, 0))
    eps: float = 0.0

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self.targets[0].tensor.device
