"""What changes from step to step, in device memory: so that a captured step can be replayed without the host's word."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from helene import functional
from helene.kernels.methods import NUM_HYPERS

_SLOTS = 64  # steps that may be under way before the host waits for the oldest
HISTORY = 1024  # slopes kept on the device


class Control:
    """Key, radius and hyper-parameters of the current step, sent in one copy; the slopes of the last steps.

    Attributes:
        control: int64: seed, step, draw.
        eps: float64, one element.
        values: float32: eps, c, whether an update is made (1 or 0), and whether it is left to the host (1 or 0).
        hypers: float32, shape (groups, `NUM_HYPERS`).
        slopes: float64, shape (`HISTORY`,), of step t at t mod `HISTORY`.
        broken: int64, one element: the first step whose losses were not finite, or 0.
    """

    def __init__(self, num_groups: int, device: torch.device) -> None:
        self.device = device
        num_floats = 4 + num_groups * NUM_HYPERS
        self._packed = torch.zeros(4 + -(-num_floats // 2), dtype=torch.int64, device=device)
        self.eps = self._packed[3:4].view(torch.float64)
        self.control, self.values, self.hypers = _views(self._packed, num_groups)
        self.slopes = torch.zeros(HISTORY, dtype=torch.float64, device=device)
        self.broken = torch.zeros(1, dtype=torch.int64, device=device)
        pinned = device.type == "cuda"
        self._staging = torch.zeros(_SLOTS, self._packed.numel(), dtype=torch.int64, pin_memory=pinned)
        self._sent: list[Any] = [None] * _SLOTS
        self._words = self._staging.numpy()
        self._broken_host = torch.zeros(1, dtype=torch.int64, pin_memory=pinned)
        self._broken_seen: Any = None

    def send(self, seed: int, step: int, eps: float, hypers: np.ndarray, by_host: bool) -> None:
        """Make these the current step's, in the order of the current stream."""
        slot = step % _SLOTS
        if self._sent[slot] is not None:
            self._sent[slot].synchronize()
        words = self._words[slot]
        words[:3] = seed - (1 << 64) if seed >= 1 << 63 else seed, step, 0
        words[3:4].view(np.float64)[0] = eps
        floats = words[4:].view(np.float32)
        floats[:4] = eps, 0.0, 0.0, float(by_host)
        floats[4 : 4 + hypers.size] = hypers.reshape(-1)
        self._packed.copy_(self._staging[slot], non_blocking=True)
        if self.device.type == "cuda":
            self._sent[slot] = torch.cuda.Event()
            self._sent[slot].record()

    def finish(self, losses: Tensor, ranks: int) -> None:
        """c from the two losses (their sums over the ranks), on the device; a step with other numbers moves nothing."""
        pair = losses.double() / ranks
        slope = functional.projected_gradient(pair[0], pair[1], self.eps[0])
        fine = torch.isfinite(slope) & torch.isfinite(pair).all()
        self.values[1:2] = torch.where(fine, slope, torch.zeros_like(slope)).float()
        self.values[2:3] = fine.float() * (1.0 - self.values[3:4])
        self.slopes.index_copy_(0, torch.remainder(self.control[1:2], HISTORY), slope.view(1))
        step = self.control[1:2]
        seen = fine | (self.broken > 0) | (self.values[3:4] > 0)  # the host looks at its own steps
        self.broken.copy_(torch.where(seen, self.broken, step))

    def look(self) -> None:
        """Ask for `broken`, to be seen by a later `trouble`."""
        if self._broken_seen is None and self.device.type == "cuda":
            self._broken_host.copy_(self.broken, non_blocking=True)
            self._broken_seen = torch.cuda.Event()
            self._broken_seen.record()

    def trouble(self, wait: bool = False) -> int:
        """The first step whose losses were not finite, 0 if none is known; waits for nothing unless asked."""
        if wait:
            self._broken_seen = None
            return int(self.broken.item())
        if self._broken_seen is not None and self._broken_seen.query():
            self._broken_seen = None
            return int(self._broken_host[0])
        return 0

    def forgive(self) -> None:
        """Forget about it, once it has been reported."""
        self.broken.zero_()


def _views(packed: Tensor, num_groups: int) -> tuple[Tensor, Tensor, Tensor]:
    floats = packed[4:].view(torch.float32)
    return packed[:3], floats[:4], floats[4 : 4 + num_groups * NUM_HYPERS].view(num_groups, NUM_HYPERS)
