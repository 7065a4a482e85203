"""Sophia, on SPSA gradients and on gradients: the update is clipped, not the curvature floored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Unpack

from helene.rules import SophiaRule
from helene.steps.base import Base, LearningRate
from helene.steps.first import FirstOrder
from helene.steps.zeroth import Curvature, CurvatureOptions, ZerothOrder


class _Clipped(Base):
    def clip_counts(self) -> dict[str, int]:
        """How many coordinates of each parameter have been clipped so far, summed over steps, by name."""
        return {t.name: int(self.state[t.tensor]["clipped"]) if self.state[t.tensor] else 0 for t in self.targets}


class ZOSophia(_Clipped, ZerothOrder):
    r"""Sophia (Liu et al. 2023, algorithm 3) on the SPSA gradient, h from a source of `helene.evaluation.curvature`.

        m ← beta1 m + (1 − beta1) g
        h ← beta2 h + (1 − beta2) ĥ            at t = first_estimate and every ``interval`` steps from there
        theta ← theta − lr · weight_decay · theta
        theta ← theta − lr · clip(m / max(gamma h, denominator_eps), clip)

    Cost of a step: 2 forwards, 3 draws of z, 3 passes over the parameters, and what the curvature source adds. State: m
    and h. `clip_counts` tells how often the clip acted. The defaults are those of the paper's experiments (beta1 0.96,
    beta2 0.99, k 10, denominator_eps 1e-12, clip 1; gamma 0.05 is its Sophia-G) and MeZO's lr.

    Args:
        params: Parameters, named parameters or groups of either; a group is a layer.
        lr: Learning rate, a number or a function of the step (the first is 1); the step of a clipped coordinate.
        beta1: EMA of g, in [0, 1).
        gamma: Scale of h in the denominator, > 0.
        clip: Bound on an element of the update in units of lr, > 0; the theorem of HELENE's paper calls it ρ.
        denominator_eps: Least denominator, > 0.
        options: See `helene.rules.CurvatureRule` and `ZerothOrder`.
    """

    RULE = SophiaRule

    def __init__(
        self,
        params: Iterable[Any],
        lr: LearningRate = 1e-6,
        *,
        beta1: float = 0.96,
        gamma: float = 0.05,
        clip: float = 1.0,
        denominator_eps: float = 1e-12,
        **options: Unpack[Curvature],
    ) -> None:
        hyper = {"lr": lr, "beta1": beta1, "gamma": gamma, "clip": clip, "denominator_eps": denominator_eps}
        super().__init__(params, hyper, options)


class SophiaG(_Clipped, FirstOrder):
    r"""Sophia-G: `ZOSophia`'s equations on the gradient, h from labels drawn from the model (Liu et al. 2023).

    Needs ``step(closure, curvature_closure)``, the second returning logits. Cost of a step: 1 forward and 1 backward,
    and as much again at the steps that estimate h; 1 pass over the parameters. State: m and h. Defaults are the
    paper's (decay 0.2), lr that of its smallest model.

    Args:
        params: Parameters, named parameters or groups of either; a group is a layer.
        lr: Learning rate, a number or a function of the step (the first is 1); the step of a clipped coordinate.
        beta1: EMA of g, in [0, 1).
        gamma: Scale of h in the denominator, > 0.
        clip: Bound on an element of the update in units of lr, > 0.
        denominator_eps: Least denominator, > 0.
        options: See `helene.rules.CurvatureRule` (sources "sampled_labels" and "backprop") and
            `helene.steps.base.Base`.
    """

    RULE = SophiaRule
    DEFAULTS: ClassVar[Mapping[str, Any]] = {"curvature": "sampled_labels", "weight_decay": 0.2}

    def __init__(
        self,
        params: Iterable[Any],
        lr: LearningRate = 6e-4,
        *,
        beta1: float = 0.96,
        gamma: float = 0.05,
        clip: float = 1.0,
        denominator_eps: float = 1e-12,
        **options: Unpack[CurvatureOptions],
    ) -> None:
        hyper = {"lr": lr, "beta1": beta1, "gamma": gamma, "clip": clip, "denominator_eps": denominator_eps}
        super().__init__(params, hyper, options)
