"""An example for Lightning: manual optimization, one line a step.

Lightning's automatic optimization calls backward inside the closure, which a zeroth-order step must not do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from lightning import LightningModule
from torch import Tensor, nn

from helene.integrations.stepper import HasStepper, Stepper, UseEngine


class ZerothOrderModule(HasStepper, LightningModule):
    """Trains a model with any optimizer of this package; on a GPU by `helene.engine`, where steps can be captured.

    Args:
        model: The model.
        loss: Maps the model and a batch to a scalar. A captured step does not run its Python again.
        optimizer: Maps the model to an optimizer, e.g. ``lambda model: MeZO(model.named_parameters(), model=model)``.
        use_engine: "auto"; True has the engine or an error; False never has it.
        engine_options: Keyword arguments of `helene.engine.Engine`.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[nn.Module, Any], Tensor],
        optimizer: Callable[[nn.Module], torch.optim.Optimizer],
        use_engine: UseEngine = "auto",
        engine_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model, self.loss, self.make_optimizer = model, loss, optimizer
        self._use_engine, self._engine_options = use_engine, engine_options

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The optimizer over the model."""
        return self.make_optimizer(self.model)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """One step: the optimizer evaluates the loss as often as it needs; dropout is off for it."""
        self.model.eval()
        optimizer: Any = self.optimizers()
        if self._stepper is None or self._stepper.optimizer is not optimizer.optimizer:
            self._stepper = Stepper(
                self.model,
                optimizer.optimizer,
                self.loss,
                use_engine=self._use_engine,
                options=self._engine_options,
            )
        self._stepper.prepare(batch)
        loss = optimizer.step(closure=lambda: self.loss(self.model, batch))
        self.log("train_loss", loss)

    def on_train_start(self) -> None:
        """What an interrupted run has kept for its next step is not this run's."""
        self._forget_steps()

    def on_train_end(self) -> None:
        """Tell of a loss that was not finite."""
        self._flush()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Tell of a loss that was not finite before anything is kept."""
        self._flush()

    def on_exception(self, exception: BaseException) -> None:
        """Bring the optimizer's statistics up to date."""
        self._flush(quiet=True)
