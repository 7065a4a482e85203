"""What a run under way has come to: steps, seconds, forwards, its curve, its best look at dev."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from llm_bench.evaluation.evaluate import Evaluation


@dataclass
class RunState:
    """A run under way: everything that, with the weights and the optimizer's state, lets it go on.

    Attributes:
        step: Steps made.
        losses: Training losses since the last look at dev.
        curve: Columns, one entry a look at dev: see `look`.
        best_step: Step of the best look at dev.
        training_seconds: Synchronized, evaluation and saving left out.
        evaluation_seconds: Of the looks at dev.
        forwards: Made by the steps, a backward counted as two.
        tokens: That the steps' minibatches held, padding left out.
        padded_tokens: The same with padding.
        made: Of the steps, by mode and reason: (mode, reason, number).
        ended: Why the run stopped early (status, sentence), or None.
    """

    step: int = 0
    losses: list[float] = field(default_factory=list)
    curve: dict[str, list[Any]] = field(default_factory=dict)
    best_step: int = 0
    training_seconds: float = 0.0
    evaluation_seconds: float = 0.0
    forwards: int = 0
    tokens: int = 0
    padded_tokens: int = 0
    made: list[tuple[str, str, int]] = field(default_factory=list)
    ended: tuple[str, str] | None = None

    def look(self, dev: Evaluation, c_rms: float | None) -> bool:
        """Note a look at dev and return whether it is the best so far: higher metric, then lower loss."""
        row = {
            "step": self.step,
            "train_loss": float(np.mean(self.losses)) if self.losses else None,
            "dev_metric": dev.metric if dev.metric == dev.metric else None,
            "dev_loss": dev.loss,
            "dev_option_loss": dev.option_loss,
            "dev_auc": dev.auc,
            "c_rms": c_rms,
            "forwards": self.forwards,
            "training_seconds": self.training_seconds,
        }
        for name, value in row.items():
            self.curve.setdefault(name, []).append(value)
        self.losses = []
        place = self.curve["step"].index(self.best_step)
        metrics = self.curve["dev_metric"]
        best, new = (metrics[place] or 0.0, -self.curve["dev_loss"][place]), (metrics[-1] or 0.0, -dev.loss)
        if self.step == 0 or new > best:
            self.best_step = self.step
            return True
        return False
