"""HELENE, as Algorithm 1 of its paper reads."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Unpack

import torch
from torch import Tensor

from helene import functional
from helene.floors import Floor, Layer, RadiusFloor
from helene.optimizers import checks
from helene.optimizers.base import Chunk, LearningRate, Updates
from helene.optimizers.curved import CURVATURE, Curved
from helene.optimizers.zeroth import Directions, ZerothOrder


class Helene(Curved, ZerothOrder):
    r"""Annealed momentum over a floored diagonal curvature (HELENE paper, Algorithms 1 and 2).

    With t the step, g = c z the SPSA gradient, alpha = beta1 + (1 − beta1) exp(−t / anneal_horizon):

        m ← beta1 m + alpha g
        h ← beta2 h + (1 − beta2) ĥ            at t = first_estimate and every ``interval`` steps from there
        theta ← theta − lr · weight_decay · theta
        theta ← theta − lr · m / (gamma · max(h, floor) + denominator_eps)

    Cost of a step: 2 forwards, 3 draws of z, 3 passes over the parameters, and what the curvature source adds (table in
    `helene.curvature`). State: m and h, two tensors of the parameters' size (float32; float64 for float64 parameters);
    only m with ``curvature="none"``. Scratch memory as in `helene.probe.Probe`.

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
        floor: λ_i, > 0: one number or rule of `helene.floors` for all layers, or one per layer. A group's own
            ``"floor"`` wins. A rule that looks at h costs one more draw of z at the steps that estimate h.
        denominator_eps: Added to the denominator, >= 0.
        curvature: A source of `helene.curvature`: "spsa", "spsa_own_batch", "backprop", "sampled_labels" or "none".
        bias_correction: Whether h is read as h / (1 − beta2ⁿ) after n estimates, which removes the pull of h_0 = 0; the
            paper does not.
        first_estimate: Step of the first estimate of h, >= 1. ``interval`` delays it as in a reading t mod k = 0.
        options: See `ZerothOrder`.

    Raises:
        ValueError: If an argument is out of its range, no parameter requires a gradient, or a dtype is unsupported.
    """

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
        curvature: str = "spsa",
        bias_correction: bool = False,
        first_estimate: int = 1,
        **options: Unpack[Directions],
    ) -> None:
        self._rules: dict[int, Floor] = {}
        self._STATE = ("momentum",) if curvature == "none" else ("momentum", CURVATURE)
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
        super().__init__(_with_floors(list(params), floor), hyper, options)

    def _update(
        self, group: dict[str, Any], theta: Tensor, g: Tensor, state: Updates, estimate: Tensor | None
    ) -> tuple[Tensor, Updates]:
        h, updates = self._new_curvature(group, state, estimate)
        theta, m = functional.helene_step(
            theta,
            g,
            state["momentum"],
            g.new_zeros(()) if h is None else h,
            lr=group["lr"],
            beta1=group["beta1"],
            alpha=functional.anneal(group["step"], group["beta1"], group["anneal_horizon"]),
            gamma=group["gamma"],
            floor=group["floor"],
            denominator_eps=group["denominator_eps"],
            weight_decay=group["weight_decay"],
            h_correction=self._correction(group),
        )
        return theta, {"momentum": m, **updates}

    def _before_update(self, step: int, gradient: Chunk) -> None:
        rules = {index: rule for index, rule in self._rules.items() if not isinstance(rule, RadiusFloor)}
        if self._estimates_at(step) and rules:
            for index, rule in rules.items():
                self.param_groups[index]["floor"] = self._ask(rule, index, step)

    def _ask(self, rule: Floor, index: int, step: int) -> float:
        group = self.param_groups[index]
        dimension = sum(p.numel() for p in group["params"] if p.requires_grad)
        if not dimension:
            return 1.0  # frozen or without elements: nothing is floored
        value = float(rule(Layer(self.layer_name(index), index, dimension, step, lambda: self._layer_curvature(group))))
        if not 0.0 < value < math.inf:
            raise ValueError(
                f"the floor of {self.layer_name(index)} is {value} by {rule!r} at step {step}, it must be positive and "
                "finite: many h are 0 there; a constant, a mean or a higher quantile is not"
            )
        return value

    def _prepare(self) -> None:
        super()._prepare()
        for index, group in enumerate(self.param_groups):
            radius = group["floor"] if isinstance(group["floor"], RadiusFloor) else self._rules.get(index)
            if isinstance(radius, RadiusFloor):
                group["floor"] = self._ask(radius, index, 0)
                self._rules.pop(index, None)
                if not any(p.numel() for p in group["params"] if p.requires_grad):
                    self._rules[index] = radius  # asked again when something of the layer is unfrozen
            elif callable(group["floor"]):
                if group["curvature"] == "none" or group["first_estimate"] != 1:
                    raise ValueError(
                        f"the floor {group['floor']!r} looks at h from the first step on, so it needs a curvature "
                        f"source and first_estimate=1; got {group['curvature']!r} and {group['first_estimate']}"
                    )
                self._rules[index], group["floor"] = group["floor"], math.nan
            if index not in self._rules:
                checks.positive(group["floor"], "floor", "the paper's ablation uses 1 to 3")

    def _check(self, group: dict[str, Any]) -> None:
        super()._check(group)
        checks.fraction(group["beta1"], "beta1")
        checks.positive(
            group["anneal_horizon"], "anneal_horizon", "the number of steps of the run, or math.inf for no anneal"
        )
        checks.positive(group["gamma"], "gamma", "1 leaves h and the floor as they are")
        checks.nonnegative(group["denominator_eps"], "denominator_eps")

    def _factor(self, group: dict[str, Any], state: Updates) -> Tensor:
        h = state.get(CURVATURE, torch.zeros(())) * self._correction(group)
        return functional.precondition(h.new_ones(()), h, group["gamma"], group["floor"], group["denominator_eps"])

    def _layer_diagnostics(self, group: dict[str, Any]) -> dict[str, Any]:
        """The floor and the share of h above it, beside the effective step."""
        correction, above, size = self._correction(group), 0, 0
        for state in self._layer_states(group):
            if CURVATURE in state:
                above += int((state[CURVATURE] * correction > group["floor"]).sum())
                size += state[CURVATURE].numel()
        share = above / size if size else 0.0
        return {"floor": group["floor"], "share_above_floor": share, **super()._layer_diagnostics(group)}


def _with_floors(params: list[Any], floor: float | Floor | Sequence[float | Floor]) -> list[Any]:
    """Groups that carry their layer's floor."""
    groups = [dict(group) for group in params] if params and isinstance(params[0], dict) else [{"params": params}]
    if not params:
        return params
    per_layer = list(floor) if isinstance(floor, Sequence) else [floor] * len(groups)
    if len(per_layer) != len(groups):
        raise ValueError(f"floor has {len(per_layer)} values for {len(groups)} layers; give one number, or one a layer")
    for group, value in zip(groups, per_layer, strict=True):
        group.setdefault("floor", value)
        if not callable(group["floor"]):
            checks.positive(group["floor"], "floor", "the paper's ablation uses 1 to 3")
    return groups
