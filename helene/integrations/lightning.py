"""An example for Lightning: manual optimization, one line a step.

Lightning's automatic optimization calls backward inside the closure, which a zeroth-order step must not do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from lightning import LightningModule
from torch import Tensor, nn


class ZerothOrderModule(LightningModule):
    """Trains a model with any optimizer of this package.

    Args:
        model: The model.
        loss: Maps the model and a batch to a scalar.
        optimizer: Maps the model to an optimizer, e.g. ``lambda model: MeZO(model.named_parameters(), model=model)``.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[nn.Module, Any], Tensor],
        optimizer: Callable[[nn.Module], torch.optim.Optimizer],
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model, self.loss, self.make_optimizer = model, loss, optimizer

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The optimizer over the model."""
        return self.make_optimizer(self.model)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """One step: the optimizer evaluates the loss as often as it needs; dropout is off for it."""
        self.model.eval()
        loss = self.optimizers().step(closure=lambda: self.loss(self.model, batch))
        self.log("train_loss", loss)
