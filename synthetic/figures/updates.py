"""The optimizers' updates on many runs at once: rows of theta, per-row settings, the rules of `helene.rules`.

A row's numbers equal those of the optimizer of that name; a test holds them together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from helene import functional
from helene.rules import (
    AdamRule,
    CurvatureRule,
    HeavyBallRule,
    HeleneRule,
    NewtonRule,
    Rule,
    SGDRule,
    SophiaRule,
)

RULES = ("sgd", "ema", "momentum", "annealed", "adam", "newton", "sophia", "helene")
DEFAULTS: dict[str, Any] = {
    "beta1": 0.9,
    "beta2": 0.99,
    "interval": 10,
    "gamma": 1.0,
    "clip": 1.0,
    "floor": 1.0,
    "horizon": float("inf"),
    "batch": 1,
    "denominator_eps": 1e-12,
}


_RULES: dict[str, Callable[[Mapping[str, Any]], Rule]] = {
    "sgd": lambda s: SGDRule(lr=s["lr"]),
    "momentum": lambda s: HeavyBallRule(lr=s["lr"], momentum=s["beta1"]),
    "adam": lambda s: AdamRule(lr=s["lr"], beta1=s["beta1"], beta2=s.get("adam_beta2", 0.999)),
    "newton": lambda s: NewtonRule(lr=s["lr"], denominator_eps=s["denominator_eps"], **_curved(s)),
    "sophia": lambda s: SophiaRule(
        lr=s["lr"],
        beta1=s["beta1"],
        gamma=s["gamma"],
        clip=s["clip"],
        denominator_eps=s["denominator_eps"],
        **_curved(s),
    ),
    "helene": lambda s: HeleneRule(
        lr=s["lr"],
        beta1=s["beta1"],
        anneal_horizon=s["horizon"],
        gamma=s["gamma"],
        floor=s["floor"],
        denominator_eps=s["denominator_eps"],
        **_curved(s),
    ),
}


def _curved(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {"beta2": settings["beta2"], "interval": settings["interval"], "batch_size": settings["batch"]}


class ManyRuns:
    """State of many runs of one method.

    Args:
        method: ``sgd`` (MeZO on SPSA gradients); ``ema``, m ← β1 m + (1 − β1) g; ``momentum``, heavy ball;
            ``annealed``, m ← β1 m + α(t) g; ``adam``; ``newton``; ``sophia``; ``helene``.
        theta: Starting points, shape (..., d).
        settings: ``lr`` and what of `DEFAULTS` differs; tensors that broadcast against theta where runs differ.

    Raises:
        ValueError: If the method is unknown.
    """

    def __init__(self, method: str, theta: Tensor, settings: Mapping[str, Any]) -> None:
        if method not in RULES:
            raise ValueError(f"method must be one of {', '.join(RULES)}, got {method!r}")
        self.method, self.theta, self.t = method, theta.clone(), 0
        self.settings = {**DEFAULTS, **settings}
        self.rule = _RULES[method](self.settings) if method in _RULES else None
        self.state: Any = self.rule.init(theta) if self.rule else torch.zeros_like(theta)

    @property
    def h(self) -> Tensor:
        """The curvature, of the methods that keep one."""
        h: Tensor = self.state.curvature
        return h

    def step(self, g: Tensor, curvature: Tensor | None = None) -> None:
        """Move theta by one update.

        Args:
            g: Gradient or its estimate, shape of theta.
            curvature: The diagonal to be used as h; if None, h is the moving average of A-GNB's B g⊙g.
        """
        self.t += 1
        s = self.settings
        if self.rule is None:
            alpha = 1 - s["beta1"] if self.method == "ema" else functional.anneal(self.t, s["beta1"], s["horizon"])
            self.state = functional.momentum(self.state, g, s["beta1"], alpha)
            self.theta = functional.descend(self.theta, self.state, s["lr"])
            return
        estimate = None
        if isinstance(self.rule, CurvatureRule):
            if curvature is not None:
                self.state = self.state._replace(curvature=curvature)
            else:
                estimate = self.rule.estimate(self.t, g)
        self.theta, self.state = self.rule.update(self.t, self.theta, g, self.state, estimate)
