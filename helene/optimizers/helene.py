"""HELENE, as Algorithm 1 of its paper reads."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Unpack

from helene.evaluation.curvature import Source
from helene.inputs import numeric
from helene.rules import HeleneRule, Rule
from helene.rules.floors import Floor
from helene.steps import checks
from helene.steps.base import LearningRate
from helene.steps.zeroth import Directions, ZerothOrder


class Helene(ZerothOrder):
    r"""Annealed momentum over a floored diagonal curvature (HELENE paper, Algorithms 1 and 2).

    With t the step, g = c z the SPSA gradient, alpha = beta1 + (1 − beta1) exp(−t / anneal_horizon):

        m ← beta1 m + alpha g
        h ← beta2 h + (1 − beta2) ĥ            at t = first_estimate and every ``interval`` steps from there
        theta ← theta − lr · weight_decay · theta
        theta ← theta − lr · m / (gamma · max(h, floor) + denominator_eps)

    Cost of a step: 2 forwards, 3 draws of z, 3 passes over the parameters, and what the curvature source adds (table in
    `helene.evaluation.curvature`). State: m and h, two tensors of the parameters' size (float32; float64 for float64
    parameters); only m with ``curvature="none"``. Scratch memory as in `helene.evaluation.probe.Probe`.

    Where Algorithm 1 is ambiguous: the paper's condition t mod k = 1 never holds for k = 1, and h_{t−k} is undefined at
    t = 1; here the first estimate is made at t = 1 (``first_estimate``), then every k steps, and h on the right is the
    last one, h_0 = 0. Its one ε is three arguments: ``eps`` (probe radius), ``denominator_eps`` and ``weight_decay``.
    The paper gives no value for any of them but the floor (1 to 3 in its ablation): beta1, beta2, interval and
    denominator_eps are Sophia's, lr and eps MeZO's. B and the horizon have no sensible default and must be given.

    Where every h is at most its floor this is heavy-ball MeZO with the layer's step lr / (gamma · floor +
    denominator_eps): see ALG-reduce in `theory/`.

    Args:
        params: Parameters, named parameters or groups of either; a group is a layer (`helene.layer_groups` makes them).
        lr: Learning rate, a number or a function of the step (the first is 1).
        anneal_horizon: T of Anneal, in steps, > 0; the paper's T is also the step budget. `math.inf` turns it off.
        batch_size: B of A-GNB, the number of examples (labels) in the minibatch; not needed with ``curvature="none"``.
        beta1: Momentum, in [0, 1).
        beta2: EMA of h, in [0, 1).
        interval: Steps between estimates of h (k), >= 1.
        gamma: Scale of the curvature in the denominator, > 0.
        floor: λ_i, > 0: one number or rule of `helene.rules.floors` for all layers, or one per layer. A group's own
            ``"floor"`` wins. A rule that looks at h costs one more draw of z, and h of a layer in memory, at the
            steps that estimate h.
        denominator_eps: Added to the denominator, >= 0.
        curvature: A source of `helene.evaluation.curvature`: "spsa", "spsa_own_batch", "backprop", "sampled_labels",
            "none", or an object of your own.
        bias_correction: Whether h is read as h / (1 − beta2ⁿ) after n estimates, which removes the pull of h_0 = 0; the
            paper does not.
        first_estimate: Step of the first estimate of h, >= 1. ``interval`` delays it as in a reading t mod k = 0.
        options: See `ZerothOrder`.

    Raises:
        ValueError: If an argument is out of its range, no parameter requires a gradient, or a dtype is unsupported.
    """

    RULE = HeleneRule

    @checks.required("anneal_horizon", "give T of the anneal: the steps of the run, or math.inf for no anneal")
    def __init__(
        self,
        params: Iterable[Any],
        lr: LearningRate = 1e-6,
        *,
        anneal_horizon: float,
        batch_size: int | None = None,
        beta1: float = 0.9,
        beta2: float = 0.99,
        interval: int = 10,
        gamma: float = 1.0,
        floor: float | Floor | Sequence[float | Floor] = 1.0,
        denominator_eps: float = 1e-12,
        curvature: str | Source = "spsa",
        bias_correction: bool = False,
        first_estimate: int = 1,
        **options: Unpack[Directions],
    ) -> None:
        hyper = {
            "lr": lr,
            "anneal_horizon": anneal_horizon,
            "batch_size": batch_size,
            "beta1": beta1,
            "beta2": beta2,
            "interval": interval,
            "gamma": gamma,
            "floor": 1.0,
            "denominator_eps": denominator_eps,
            "curvature": curvature,
            "bias_correction": bias_correction,
            "first_estimate": first_estimate,
        }
        checks.no_module(params)
        super().__init__(_with_floors(list(params), floor), hyper, options)

    def _layer_diagnostics(self, layer: int, rule: Rule, step: int) -> dict[str, Any]:
        """The floor and the share of h above it, beside the effective step."""
        assert isinstance(rule, HeleneRule)
        if callable(rule.floor):  # it follows h, and there is none before the first step
            return {"floor": math.nan, "share_above_floor": 0.0, "effective_step": math.nan}
        above, size = 0, 0
        for state in self._layer_states(layer, rule):
            if state.curvature is not None:
                above += int((rule.read(step, state, state.momentum) > rule.floor).sum())
                size += state.curvature.numel()
        row = super()._layer_diagnostics(layer, rule, step)
        return {"floor": rule.floor, "share_above_floor": above / size if size else 0.0, **row}


def _with_floors(params: list[Any], floor: float | Floor | Sequence[float | Floor]) -> list[Any]:
    """Groups that carry their layer's floor."""
    groups = [dict(group) for group in params] if params and isinstance(params[0], dict) else [{"params": params}]
    if not params:
        return params
    given: Any = floor.tolist() if hasattr(floor, "tolist") else floor  # numpy's arrays and tensors
    is_list = isinstance(given, Sequence) and not isinstance(given, str | bytes)
    per_layer = list(given) if is_list else [given] * len(groups)
    if len(per_layer) != len(groups):
        raise ValueError(f"floor has {len(per_layer)} values for {len(groups)} layers; give one number, or one a layer")
    for group, value in zip(groups, per_layer, strict=True):
        group["floor"] = numeric.plain(group.get("floor", value))
    return groups
