"""What changes from step to step, in device memory: so that a captured step can be replayed without the host's word."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from helene.kernels.methods import NUM_HYPERS

_SLOTS = 64  # steps that may be under way before the host waits for the oldest
HISTORY = 1024  # slopes kept on the device


class Control:
    """Key, radius and hyper-parameters of the current step, sent in one copy; the slopes of the last steps.

    Attributes:
        control: int64: seed, step, draw.
        two_eps: float64, one element.
        values: float32: eps, c, and whether c is finite (1 or 0).
        hypers: float32, shape (groups, `NUM_HYPERS`).
        before: Those three of the step before, where its update is made by this one.
        slopes: float64, shape (`HISTORY`,), of step t at t mod `HISTORY`.
        broken: int64, one element: the first step whose losses were not finite, or 0.
    """

    def __init__(self, num_groups: int, device: torch.device) -> None:
        self.device = device
        num_floats = 4 + num_groups * NUM_HYPERS
        self._packed = torch.zeros(4 + -(-num_floats // 2), dtype=torch.int64, device=device)
        self._before = torch.zeros_like(self._packed)
        self.two_eps = self._packed[3:4].view(torch.float64)
        self.control, self.values, self.hypers = _views(self._packed, num_groups)
        self.before = _views(self._before, num_groups)
        self.slopes = torch.zeros(HISTORY, dtype=torch.float64, device=device)
        self.broken = torch.zeros(1, dtype=torch.int64, device=device)
        pinned = device.type == "cuda"
        self._staging = torch.zeros(_SLOTS, self._packed.numel(), dtype=torch.int64, pin_memory=pinned)
        self._sent: list[Any] = [None] * _SLOTS
        self._words = self._staging.numpy()
        self._broken_host = torch.zeros(1, dtype=torch.int64, pin_memory=pinned)
        self._broken_seen: Any = None

    def shift(self) -> None:
        """Make the current step the one before, its c included."""
        self._before.copy_(self._packed)

    def send(self, seed: int, step: int, draw: int, eps: float, hypers: np.ndarray) -> None:
        """Make these the current step's, in the order of the current stream."""
        slot = step % _SLOTS
        if self._sent[slot] is not None:
            self._sent[slot].synchronize()
        words = self._words[slot]
        words[:3] = seed - (1 << 64) if seed >= 1 << 63 else seed, step, draw
        words[3:4].view(np.float64)[0] = 2.0 * eps
        floats = words[4:].view(np.float32)
        floats[:4] = eps, 0.0, 0.0, 0.0
        floats[4 : 4 + hypers.size] = hypers.reshape(-1)
        self._packed.copy_(self._staging[slot], non_blocking=True)
        if self.device.type == "cuda":
            self._sent[slot] = torch.cuda.Event()
            self._sent[slot].record()

    def finish(self, losses: Tensor, ranks: int) -> None:
        """c from the two losses (their sums over the ranks), on the device; a step with other numbers moves nothing."""
        pair = losses.double() / ranks
        slope = (pair[0] - pair[1]) / self.two_eps[0]
        fine = torch.isfinite(slope) & torch.isfinite(pair).all()
        self.values[1:2] = torch.where(fine, slope, torch.zeros_like(slope)).float()
        self.values[2:3] = fine.float()
        self.slopes.index_copy_(0, torch.remainder(self.control[1:2], HISTORY), slope.view(1))
        step = self.control[1:2]
        self.broken.copy_(torch.where(fine | (self.broken > 0), self.broken, step))

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
