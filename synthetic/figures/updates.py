"""The optimizers' updates on many runs at once: rows of theta, per-row settings, the arithmetic of `helene.functional`.

A row's numbers equal those of the optimizer of that name; a test holds them together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from helene import functional

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
        self.m, self.h = torch.zeros_like(theta), torch.zeros_like(theta)

    def step(self, g: Tensor, curvature: Tensor | None = None) -> None:
        """Move theta by one update.

        Args:
            g: Gradient or its estimate, shape of theta.
            curvature: The diagonal to be used as h; if None, h is the moving average of A-GNB's B g⊙g.
        """
        self.t += 1
        s, theta = self.settings, self.theta
        if curvature is not None:
            self.h = curvature
        elif self.method in ("newton", "sophia", "helene") and functional.is_curvature_step(self.t, s["interval"]):
            self.h = functional.curvature_ema(self.h, functional.a_gnb(g, s["batch"]), s["beta2"])
        match self.method:
            case "sgd":
                self.theta = functional.sgd_step(theta, g, lr=s["lr"])
            case "ema" | "annealed":
                alpha = 1 - s["beta1"]
                if self.method == "annealed":
                    alpha = functional.anneal(self.t, s["beta1"], s["horizon"])
                self.m = functional.momentum(self.m, g, s["beta1"], alpha)
                self.theta = functional.descend(theta, self.m, s["lr"])
            case "momentum":
                self.theta, self.m = functional.momentum_step(
                    theta, g, self.m, lr=s["lr"], beta1=s["beta1"], coupled=False
                )
            case "adam":
                self.theta, self.m, self.h = functional.adam_step(
                    theta,
                    g,
                    self.m,
                    self.h,
                    lr=s["lr"],
                    beta1=s["beta1"],
                    beta2=s.get("adam_beta2", 0.999),
                    denominator_eps=1e-8,
                    step=self.t,
                    coupled=True,
                )
            case "newton":
                self.theta = functional.newton_step(theta, g, self.h, lr=s["lr"], denominator_eps=s["denominator_eps"])
            case "sophia":
                self.theta, self.m, _ = functional.sophia_step(
                    theta,
                    g,
                    self.m,
                    self.h,
                    lr=s["lr"],
                    beta1=s["beta1"],
                    gamma=s["gamma"],
                    clip=s["clip"],
                    denominator_eps=s["denominator_eps"],
                )
            case _:
                self.theta, self.m = functional.helene_step(
                    theta,
                    g,
                    self.m,
                    self.h,
                    lr=s["lr"],
                    beta1=s["beta1"],
                    alpha=functional.anneal(self.t, s["beta1"], s["horizon"]),
                    gamma=s["gamma"],
                    floor=s["floor"],
                    denominator_eps=s["denominator_eps"],
                )
