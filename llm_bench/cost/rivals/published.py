"""The MeZO step as its paper describes it (Malladi et al. 2023, algorithm 1), written from that description."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn


class PublishedMeZO:
    r"""In-place perturbation by replaying the global generator, tensor by tensor.

    A step: draw a seed; theta ← theta + eps z; L⁺; theta ← theta − 2 eps z; L⁻; theta ← theta + eps z; c on the host;
    theta ← theta − lr (c z). Each of the four passes resets the generator and draws every z again by torch.normal, in
    the parameter's dtype. The arithmetic is written as the formulas read, ``theta + scale * z * eps``, temporaries
    included: this is what is timed as published. In 16-bit formats theta does not come back to where it was.

    Args:
        params: Parameters to tune.
        lr: Learning rate.
        eps: Radius.
        in_place: Write the sum into theta's memory instead of making a new tensor, for forwards captured once.
    """

    def __init__(
        self, params: Sequence[nn.Parameter], lr: float, eps: float, seed: int = 0, in_place: bool = False
    ) -> None:
        self.params, self.lr, self.eps, self.in_place = list(params), lr, eps, in_place
        self._seeds = np.random.default_rng(seed)

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor]) -> Tensor:
        """One update; returns L⁺."""
        self._seed = int(self._seeds.integers(1_000_000_000))
        self._perturb(1.0)
        plus = closure().detach().clone()
        self._perturb(-2.0)
        minus = closure()
        self._perturb(1.0)
        c = ((plus - minus) / (2 * self.eps)).item()
        torch.manual_seed(self._seed)
        for p in self.params:
            z = torch.normal(mean=0.0, std=1.0, size=p.size(), device=p.device, dtype=p.dtype)
            self._set(p, p.data - self.lr * (c * z))
        return plus

    def _perturb(self, scale: float) -> None:
        torch.manual_seed(self._seed)
        for p in self.params:
            z = torch.normal(mean=0.0, std=1.0, size=p.size(), device=p.device, dtype=p.dtype)
            self._set(p, p.data + scale * z * self.eps)

    def _set(self, p: nn.Parameter, value: Tensor) -> None:
        if self.in_place:
            p.data.copy_(value)
        else:
            p.data = value
