"""`transformers.Trainer` with a step that evaluates the loss as often as the optimizer asks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from helene.inputs import extras

try:
    from transformers import Trainer
except ModuleNotFoundError as err:
    raise extras.needed_by("HeleneTrainer", err) from err

from helene.inputs.layers import layer_groups
from helene.optimizers import MeZO
from helene.steps.base import Base
from helene.steps.zeroth import ZerothOrder


class HeleneTrainer(Trainer):
    """A Trainer for the optimizers of this package; everything else is as in `transformers.Trainer`.

    Give the method as ``optimizer_cls_and_kwargs=(MeZO, {"eps": 1e-3})``: parameters, names, layers, lr, weight decay
    and the model follow from the Trainer's own arguments. Or give a built one as ``optimizers=(optimizer, scheduler)``.
    Schedulers, callbacks, logging, evaluation, checkpoints and resuming work as usual.

    Gradient accumulation needs no gradients: the micro-batches of a step are kept, and each probe goes through all of
    them. Under a zeroth-order method the model is in eval mode during a step, since dropout would make the two losses
    of a pair differ by more than the probe. Gradient clipping and loss scaling have nothing to act on.
    """

    optimizer: Any
    _parts: Sequence[Any] = ()  # micro-batches of the step to come
    _hook: Any = None  # gives the optimizer its closure

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """As in `transformers.Trainer`; what an interrupted run has kept for its next step is not this run's."""
        self._parts = ()
        if self._hook is not None:
            self._hook.remove()
        return super().train(*args, **kwargs)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Build the method over the model's layers, unless an optimizer was given.

        Raises:
            ValueError: If the class is not one of this package.
        """
        if self.optimizer is None:
            cls, kwargs = self.optimizer_cls_and_kwargs or (MeZO, {})
            if not issubclass(cls, Base):
                raise ValueError(f"{cls.__name__} is not an optimizer of helene; use transformers.Trainer for it")
            model = model or self.model
            defaults = {"lr": self.args.learning_rate, "weight_decay": self.args.weight_decay, "seed": self.args.seed}
            if issubclass(cls, ZerothOrder):
                defaults["model"] = model
            self.optimizer = cls(layer_groups(model), **{**defaults, **kwargs})
        return self.optimizer

    def training_step(
        self, model: nn.Module, inputs: dict[str, Tensor | Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Keep the micro-batch; with the last one of a step, give the optimizer its closure.

        Returns:
            Zero: the loss is known after the step, and logged then.

        Raises:
            NotImplementedError: On several devices, where each process would see the loss of its shard only, and with
                ``fp16=True``, which scales gradients that are not there.
        """
        if self.args.n_gpu > 1 or self.accelerator.num_processes > 1:
            raise NotImplementedError("HeleneTrainer runs on one device; helene.engine is for several")
        if self.accelerator.scaler is not None:
            raise NotImplementedError("fp16=True scales gradients; use bf16=True or a model loaded in float16")
        parts = [*self._parts, self._prepare_inputs(inputs)]
        if len(parts) < self.current_gradient_accumulation_steps:
            self._parts = parts
        else:
            self._parts = ()
            self._give_closure(model, parts, num_items_in_batch)
        return torch.zeros((), device=self.args.device)

    def _give_closure(self, model: nn.Module, parts: list[Any], num_items_in_batch: Tensor | int | None) -> None:
        optimizer = getattr(self.optimizer, "optimizer", self.optimizer)  # without accelerate's wrapper
        model.train(not isinstance(optimizer, ZerothOrder))
        scaled = self.compute_loss_func is not None or (
            self.model_accepts_loss_kwargs and num_items_in_batch is not None
        )

        def closure() -> Tensor:
            with self.compute_loss_context_manager():
                losses = [self.compute_loss(model, dict(part), num_items_in_batch=num_items_in_batch) for part in parts]
            return torch.stack(losses).sum() if scaled else torch.stack(losses).mean()

        def inject(*_: Any) -> Any:
            self._hook.remove()
            return (optimizer, closure), {}

        self._hook = optimizer.register_step_pre_hook(inject)

    def _maybe_log_save_evaluate(self, tr_loss: Tensor, *args: Any, **kwargs: Any) -> Any:
        optimizer = getattr(self.optimizer, "optimizer", self.optimizer)
        if optimizer.last_loss is not None:
            tr_loss += optimizer.last_loss.to(tr_loss)
            optimizer.last_loss = None
        return super()._maybe_log_save_evaluate(tr_loss, *args, **kwargs)
