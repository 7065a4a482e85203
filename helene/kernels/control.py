"""What kernels read of a step on a device, sent in one copy that the host does not wait for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from helene.kernels.codes import NUM_HYPERS

SLOTS = 64  # copies that may be under way before the host waits for the oldest


def control_words(seed: int, step: int, draw: int, *rest: int) -> list[int]:
    """What kernels read of a key: the seed as a signed number, step, draw, and whatever follows."""
    return [seed - (1 << 64) if seed >= 1 << 63 else seed, step, draw, *rest]


class Control:
    """Key, radius, slope and hyper-parameters of a step, in memory of the device.

    Kernels read them there in the order of a stream, so that a launch needs no word of the host's.

    Args:
        device: Where the parameters are.
        num_groups: Rows of hyper-parameters.
        num_weights: Directions, where there are several or they are of low rank.

    Attributes:
        key: int64: seed, step, draw.
        eps: float64, one element.
        values: float32: eps, c, whether an update is made (1 or 0), and whether it is left to the host (1 or 0).
        hypers: float32, shape (groups, `NUM_HYPERS`).
        weights: float32, shape (directions,).
    """

    def __init__(self, device: torch.device, num_groups: int = 0, num_weights: int = 0) -> None:
        self._on_gpu, num_hypers = device.type == "cuda", num_groups * NUM_HYPERS
        num_floats = 4 + num_hypers + num_weights
        self._packed = torch.zeros(4 + -(-num_floats // 2), dtype=torch.int64, device=device)
        floats = self._packed[4:].view(torch.float32)
        self.key, self.eps, self.values = self._packed[:3], self._packed[3:4].view(torch.float64), floats[:4]
        self.hypers = floats[4 : 4 + num_hypers].view(num_groups, NUM_HYPERS)
        self.weights = floats[4 + num_hypers : num_floats]
        staging = torch.zeros(SLOTS, self._packed.numel(), dtype=torch.int64, pin_memory=self._on_gpu)
        self._slots, self._words = list(staging), staging.numpy()
        self._sent: list[Any] = [None] * SLOTS
        self._count = 0

    def send(
        self,
        key: tuple[int, int, int],
        eps: float,
        values: tuple[float, float, float] = (0.0, 0.0, 0.0),
        hypers: Tensor | None = None,
        weights: Sequence[float] = (),
    ) -> None:
        """Send a step, in the current stream's order.

        Args:
            key: Seed, step, draw.
            eps: Radius of the probes.
            values: What follows eps in `values`.
            hypers: Rows of hyper-parameters, on the CPU; zeros unless given.
            weights: One for each of the ``num_weights``; zeros unless given.
        """
        slot = self._count % SLOTS
        self._count += 1
        sent = self._sent[slot]
        if sent is not None and not sent.query():
            sent.synchronize()
        words = self._words[slot]
        words[:3] = control_words(*key)
        words[3:4].view(np.float64)[0] = eps
        floats = words[4:].view(np.float32)
        floats[:] = 0.0
        floats[:4] = eps, *values
        if hypers is not None:
            floats[4 : 4 + hypers.numel()] = hypers.numpy().reshape(-1)
        floats[4 + self.hypers.numel() :][: len(weights)] = weights
        self._packed.copy_(self._slots[slot], non_blocking=True)
        if self._on_gpu:
            sent = self._sent[slot] = sent or torch.cuda.Event()
            sent.record(torch.cuda.current_stream(self._packed.device))
