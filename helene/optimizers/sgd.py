"""SGD with momentum, the first-order baseline."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from helene.rules import TorchSGDRule
from helene.steps.base import LearningRate, Options
from helene.steps.first import FirstOrder


class SGD(FirstOrder):
    r"""m ← momentum · m + g + weight_decay · theta,  theta ← theta − lr · m  (torch.optim.SGD, decay coupled).

    Cost of a step: 1 forward, 1 backward, 1 pass over the parameters. State: m, none without momentum. Defaults are
    torch's. Equal to torch.optim.SGD up to rounding.

    Args:
        params: Parameters, named parameters or groups of either; a group is a layer.
        lr: Learning rate, a number or a function of the step (the first is 1).
        momentum: In [0, 1).
        options: See `helene.steps.base.Base`.
    """

    RULE = TorchSGDRule

    def __init__(
        self, params: Iterable[Any], lr: LearningRate = 1e-3, *, momentum: float = 0.0, **options: Unpack[Options]
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum}, options)
