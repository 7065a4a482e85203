"""A rival as strong as in-place perturbation allows: flat fused passes, captured forwards, one graph, no host."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from helene.evaluation.directions import Target
from helene.kernels import launch
from helene.kernels.tiles import Piece, Tiles


class InPlaceMeZO:
    r"""theta ← theta + eps z, L⁺, theta ← theta − 2 eps z, L⁻, theta ← theta + (eps − lr c) z: three passes, one graph.

    The kernels are those of the engine, each pass one launch over all parameters, z regenerated in registers. What it
    does without is an exact restore: in 16-bit formats theta drifts.

    Args:
        targets: Parameters to tune, of one dtype.
        closure: The loss of a batch at fixed addresses.
        lr: Learning rate.
        eps: Radius.
        seed: Of the directions.
    """

    def __init__(
        self, targets: Sequence[Target], closure: Callable[[], Tensor], lr: float, eps: float, seed: int = 0
    ) -> None:
        base = min((t.tensor for t in targets), key=lambda p: p.data_ptr()).detach()
        size = base.element_size()
        pieces = [Piece(t.tensor.detach(), t.id, (t.tensor.data_ptr() - base.data_ptr()) // size) for t in targets]
        self.tiles, self.closure, self.lr, self.eps = Tiles(pieces), closure, lr, eps
        device = base.device
        self.control = torch.tensor(launch.control_words(seed, 0, 0), device=device)
        self.radii = torch.tensor([eps, -2.0 * eps, 0.0], dtype=torch.float32, device=device)
        self.loss = torch.zeros(2, device=device)
        self._step()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._step()

    def step(self) -> Tensor:
        """One update; returns both losses."""
        self.graph.replay()
        return self.loss

    @torch.no_grad()
    def _step(self) -> None:
        self.control[1:2] += 1
        self._pass(0)
        self.loss[0] = self.closure()
        self._pass(1)
        self.loss[1] = self.closure()
        c = (self.loss[0].double() - self.loss[1].double()) / (2 * self.eps)
        self.radii[2] = self.eps - self.lr * c
        self._pass(2)

    def _pass(self, which: int) -> None:
        launch.perturb(self.tiles, self.tiles.base, None, self.control, self.radii[which : which + 1])
