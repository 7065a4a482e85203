"""`transformers.Trainer` with a step that evaluates the loss as often as the optimizer asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from helene.inputs import extras

try:
    from transformers import Trainer, TrainingArguments
    from transformers.utils import logging
except ModuleNotFoundError as err:
    raise extras.needed_by("HeleneTrainer", err) from err

from helene.evaluation.curvature import SPSA, Source, source_of
from helene.inputs.layers import layer_groups
from helene.integrations.stepper import HasStepper, Stepper, UseEngine
from helene.optimizers import MeZO
from helene.steps.base import Base
from helene.steps.zeroth import ZerothOrder

logger = logging.get_logger(__name__)
_SEVERAL = "helene.engine.Engine takes several, one a process of torchrun"


class HeleneTrainer(HasStepper, Trainer):
    """A Trainer for the optimizers of this package; everything else is as in `transformers.Trainer`.

    Give the method as ``optimizer_cls_and_kwargs=(MeZO, {"eps": 1e-3})``: parameters, names, layers, lr, weight decay
    and the model follow from the Trainer's own arguments. Or give a built one as ``optimizers=(optimizer, scheduler)``.
    Schedulers, callbacks, logging, evaluation, checkpoints and resuming work as usual.

    Gradient accumulation needs no gradients: the micro-batches of a step are kept, and each probe goes through all of
    them. Under a zeroth-order method the model is in eval mode during a step, since dropout would make the two losses
    of a pair differ by more than the probe. Gradient clipping, loss scaling and NEFTune's noise (training mode's) have
    nothing to act on.

    On a GPU steps are captured by `helene.engine`, where they can be: not with a ``compute_loss`` or a
    ``compute_loss_func`` of your own, whose Python a captured step would not run. Where several GPUs are visible, the
    first is used.

    Args:
        args: Of `transformers.Trainer`.
        use_engine: "auto"; True has the engine, with your own loss too, or an error; False never has it.
        engine_options: Keyword arguments of `helene.engine.Engine`.
        kwargs: Of `transformers.Trainer`.

    Raises:
        ValueError: As `create_optimizer`, where the optimizer that was given shows it.
    """

    optimizer: Any
    _parts: Sequence[Any] = ()  # micro-batches of the step to come

    def __init__(
        self,
        *args: Any,
        use_engine: UseEngine = "auto",
        engine_options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self._use_engine, self._engine_options = use_engine, engine_options
        super().__init__(*args, **kwargs)
        if self.optimizer is None:
            self._method()
        else:
            _check_built(self.optimizer)
        if self.args.n_gpu > 1:  # nn.DataParallel would see the loss of shards
            logger.warning("%d GPUs are visible, HeleneTrainer uses the first; %s", self.args.n_gpu, _SEVERAL)
            self.args._n_gpu = 1
            self._train_batch_size = self.args.train_batch_size

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """As in `transformers.Trainer`; what an interrupted run has kept for its next step is not this run's."""
        self._parts = ()
        self._forget_steps()
        filtered = self.args.logging_nan_inf_filter
        self.args.logging_nan_inf_filter = False  # it looks at the zeros of `training_step`, and waits for the GPU
        try:
            result = super().train(*args, **kwargs)
            self._flush()
            return result
        finally:
            self.args.logging_nan_inf_filter = filtered
            self._flush(quiet=True)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Build the method over the model's layers, unless an optimizer was given.

        Raises:
            ValueError: If the optimizer is not one of this package, needs the loss of each example or a closure for
                the curvature, or its lr is a function.
        """
        if self.optimizer is None:
            cls, kwargs = self._method()
            model = model or self.model
            defaults = {"lr": self.args.learning_rate, "weight_decay": self.args.weight_decay, "seed": self.args.seed}
            if issubclass(cls, ZerothOrder):
                defaults["model"] = model
                if "lr" not in kwargs:
                    self._tell_default_lr(cls)
            self.optimizer = cls(layer_groups(model), **{**defaults, **kwargs})
        _check_built(self.optimizer)
        return self.optimizer

    def _method(self) -> tuple[type[Base], Mapping[str, Any]]:
        """The class that was given and its arguments, checked as far as they can be without a model."""
        given: Any = self.optimizer_cls_and_kwargs or (MeZO, {})
        if isinstance(given, type):
            raise ValueError(f"optimizer_cls_and_kwargs is {given.__name__}; give ({given.__name__}, {{...}})")
        cls, kwargs = given
        if not issubclass(cls, Base):
            raise ValueError(f"{cls.__name__} is not an optimizer of helene; use transformers.Trainer for it")
        if (groups := kwargs.get("groups", 1)) != 1:
            raise ValueError(
                f"groups={groups!r} needs the loss of each example, and a Trainer has one loss a batch; write the "
                "loop yourself, with helene.engine.groups.GroupEngine"
            )
        _check_source(source_of(kwargs.get("curvature", cls.DEFAULTS.get("curvature", SPSA))))
        return cls, kwargs

    def _tell_default_lr(self, cls: type[ZerothOrder]) -> None:
        lr = self.args.learning_rate
        if lr == TrainingArguments.learning_rate:
            logger.warning(
                "learning_rate is %r, the default of transformers, and %s takes it; docs/choosing.md has starting "
                "values: set it in the arguments, or give (%s, {'lr': %r}) to keep it",
                *(lr, cls.__name__, cls.__name__, lr),
            )

    def training_step(
        self, model: nn.Module, inputs: dict[str, Tensor | Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Keep the micro-batch; with the last one of a step, give the optimizer what it is to evaluate.

        Returns:
            Zero: the loss is known after the step, and logged then.

        Raises:
            NotImplementedError: In several processes, where each would see the loss of its shard only, and with
                ``fp16=True``, which scales gradients that are not there.
        """
        if self.accelerator.num_processes > 1:
            raise NotImplementedError(
                f"HeleneTrainer runs in one process, here are {self.accelerator.num_processes}; {_SEVERAL}"
            )
        if self.accelerator.scaler is not None:
            raise NotImplementedError("fp16=True scales gradients; use bf16=True or a model loaded in float16")
        parts = [*self._parts, dict(self._prepare_inputs(inputs))]
        if len(parts) < self.current_gradient_accumulation_steps:
            self._parts = parts
        else:
            self._parts = ()
            optimizer = getattr(self.optimizer, "optimizer", self.optimizer)  # without accelerate's wrapper
            model.train(not isinstance(optimizer, ZerothOrder))
            if isinstance(num_items_in_batch, int):
                num_items_in_batch = torch.tensor(num_items_in_batch, device=self.args.device)
            self._stepper_of(model, optimizer).prepare({"parts": parts, "num_items_in_batch": num_items_in_batch})
        return torch.zeros((), device=self.args.device)

    def _stepper_of(self, model: nn.Module, optimizer: Any) -> Stepper:
        held = self._stepper
        if held is None or held.model is not model or held.optimizer is not optimizer:
            self._stepper = held = Stepper(
                model,
                optimizer,
                self._loss_of_parts,
                use_engine=self._use_engine,
                options=self._engine_options,
                unstable=self._own_loss(),
            )
        return held

    def _own_loss(self) -> str:
        """Why a captured step may leave out Python of the user's, in one line."""
        own = type(self).compute_loss is not Trainer.compute_loss
        if not own and self.compute_loss_func is None:
            return ""
        name = "compute_loss" if own else "compute_loss_func"
        return f"{name} is your own, and a captured step would not run its Python; use_engine=True says that it may be"

    def _loss_of_parts(self, model: nn.Module, batch: dict[str, Any]) -> Tensor:
        """The loss of a step's micro-batches taken as one."""
        num_items = batch["num_items_in_batch"]
        scaled = self.compute_loss_func is not None or (self.model_accepts_loss_kwargs and num_items is not None)
        with self.compute_loss_context_manager():
            losses = [self.compute_loss(model, dict(part), num_items_in_batch=num_items) for part in batch["parts"]]
        return torch.stack(losses).sum() if scaled else torch.stack(losses).mean()

    def _maybe_log_save_evaluate(self, tr_loss: Tensor, grad_norm: Any, *args: Any, **kwargs: Any) -> Any:
        """See `transformers.Trainer`; ``grad_norm``, 0 since no method writes ``.grad``, is not logged."""
        optimizer = getattr(self.optimizer, "optimizer", self.optimizer)
        if self.control.should_log or self.control.should_evaluate or self.control.should_save:
            self._flush()
        if optimizer.last_loss is not None:
            tr_loss += optimizer.last_loss.to(tr_loss)
            optimizer.last_loss = None
        return super()._maybe_log_save_evaluate(tr_loss, None, *args, **kwargs)


def _check_built(optimizer: Any) -> None:
    built = getattr(optimizer, "optimizer", optimizer)  # without accelerate's wrapper
    if not isinstance(built, Base):
        raise ValueError(f"{type(built).__name__} is not an optimizer of helene; use transformers.Trainer for it")
    if built.schedule is not None:
        raise ValueError(
            f"lr is the function {built.schedule!r}, and the Trainer's scheduler would set lr over it at "
            "each step; give a number and lr_scheduler_type, or optimizers=(optimizer, scheduler) with a scheduler "
            "of torch"
        )
    _check_source(built.source)


def _check_source(source: Source) -> None:
    if source.needs_closure:
        raise ValueError(
            f"curvature={source.name!r} needs step(closure, curvature_closure), and a Trainer has one closure; take "
            "curvature='backprop', or write the loop yourself"
        )
