"""HELENE, as Algorithm 1 of its paper reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from helene import curvature as estimators
from helene import functional, noise
from helene.optimizers.base import LearningRate, ZerothOrder, fraction, nonnegative, positive
from helene.probe import Closure, Direction


class Helene(ZerothOrder):
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
        eps: Radius of the probes, > 0.
        beta1: Momentum, in [0, 1).
        beta2: EMA of h, in [0, 1).
        interval: Steps between estimates of h (k), >= 1.
        gamma: Scale of the curvature in the denominator, > 0.
        floor: λ_i, > 0: one number, or one per layer. A group's own ``"floor"`` wins.
        denominator_eps: Added to the denominator, >= 0.
        weight_decay: Coefficient, >= 0, decoupled.
        curvature: A source of `helene.curvature`: "spsa", "spsa_own_batch", "backprop", "sampled_labels" or "none".
        bias_correction: Whether h is read as h / (1 − beta2ⁿ) after n estimates, which removes the pull of h_0 = 0; the
            paper does not.
        first_estimate: Step of the first estimate of h, >= 1. ``interval`` delays it as in a reading t mod k = 0.
        seed: Of the directions.
        model: Module that reads the parameters, to perturb module by module.

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
        eps: float = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.99,
        interval: int = 10,
        gamma: float = 1.0,
        floor: float | Sequence[float] = 1.0,
        denominator_eps: float = 1e-12,
        weight_decay: float = 0.0,
        curvature: str = "spsa",
        bias_correction: bool = False,
        first_estimate: int = 1,
        seed: int = 0,
        model: nn.Module | None = None,
    ) -> None:
        fraction(beta1, "beta1")
        fraction(beta2, "beta2")
        positive(anneal_horizon, "anneal_horizon", "the number of steps of the run, or math.inf for no anneal")
        positive(gamma, "gamma", "1 leaves h and the floor as they are")
        nonnegative(denominator_eps, "denominator_eps")
        for name, value in (("interval", interval), ("first_estimate", first_estimate)):
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be an integer, 1 or above, got {value!r}; 10 is usual for interval")
        if curvature not in estimators.SOURCES:
            raise ValueError(f"curvature must be one of {', '.join(estimators.SOURCES)}; got {curvature!r}")
        if curvature in ("spsa", "spsa_own_batch", "backprop") and (not isinstance(batch_size, int) or batch_size < 1):
            raise ValueError(
                f"batch_size must be the number of examples in a minibatch, 1 or above, got {batch_size!r}"
            )
        self._STATE = ("momentum",) if curvature == "none" else ("momentum", "curvature")
        defaults = {
            "lr": lr,
            "eps": eps,
            "weight_decay": weight_decay,
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
        self._sample: _Sample | None = None
        super().__init__(_with_floors(list(params), floor), defaults, seed=seed, model=model)

    def step(self, closure: Closure, curvature_closure: Closure | None = None) -> Tensor:  # type: ignore[override]
        """One update.

        Args:
            closure: Returns the loss of one minibatch as one number, and gives the same value when called twice at the
                same point. It is called without gradients and must not call backward.
            curvature_closure: For the sources that look at a minibatch of their own: the loss of that minibatch
                ("spsa_own_batch"; "backprop", where it defaults to ``closure``), or its logits ("sampled_labels").
                Called only at the steps that estimate h.

        Returns:
            (L⁺ + L⁻) / 2, detached, on the loss's device: no further forward is made.

        Raises:
            ValueError: If a closure returns no scalar, or the source needs a ``curvature_closure`` and there is none.
            FloatingPointError: If a loss is not finite; parameters and state are then unchanged.
        """
        source = self.param_groups[0]["curvature"]
        if source in ("spsa_own_batch", "sampled_labels") and curvature_closure is None:
            raise ValueError(f"curvature={source!r} needs step(closure, curvature_closure)")
        step = self._begin()
        slope, loss = self._pair(closure, self._direction(step))
        self._sample = self._curvature_sample(step, curvature_closure or closure)
        self._apply(step, slope)
        self._sample = None
        return loss

    def forwards_at(self, step: int) -> int:
        """Forwards that a step makes, a backward counted as two."""
        extra = {"spsa_own_batch": 2, "backprop": 3, "sampled_labels": 3}.get(self.param_groups[0]["curvature"], 0)
        return 2 + (extra if self._estimates_at(step) else 0)

    def _estimates_at(self, step: int) -> bool:
        hyper = self.param_groups[0]
        return hyper["curvature"] != "none" and functional.is_curvature_step(
            step, hyper["interval"], hyper["first_estimate"]
        )

    def _curvature_sample(self, step: int, closure: Closure) -> _Sample | None:
        """What ĥ of this step is made from, where it makes one."""
        if not self._estimates_at(step):
            return None
        hyper = self.param_groups[0]
        params = [target.tensor for target in self._probe.targets]
        match hyper["curvature"]:
            case "spsa_own_batch":
                direction = self._direction(step, noise.CURVATURE_DRAW)
                return _Sample(hyper["batch_size"], slope=self._pair(closure, direction)[0], direction=direction)
            case "backprop":
                return _Sample(hyper["batch_size"], estimators.mean_gradient(closure, params))
            case "sampled_labels":
                gradients, num_labels = estimators.sampled_label_gradient(closure, params, hyper["seed"], step)
                return _Sample(num_labels, gradients)
        return _Sample(hyper["batch_size"])

    def _estimate(self, index: int, span: slice, g: Tensor) -> Tensor | None:
        sample = self._sample
        if sample is None:
            return None
        if sample.gradients is not None:
            g = sample.gradients[index].reshape(-1)[span].to(g.dtype)
        elif sample.direction is not None:
            parameter = self._probe.targets[index].id
            g = sample.slope * sample.direction.chunk(parameter, span.start, span.stop, g.device).to(g.dtype)
        return functional.a_gnb(g, sample.batch_size)

    def _update(
        self, group: dict[str, Any], theta: Tensor, g: Tensor, state: dict[str, Tensor], estimate: Tensor | None
    ) -> Tensor:
        m, h = state["momentum"], state.get("curvature", g.new_zeros(()))
        if estimate is not None:
            h.copy_(functional.curvature_ema(h, estimate, group["beta2"]))
        correction = 1.0
        if group["bias_correction"] and group["step"] >= group["first_estimate"]:
            num_estimates = (group["step"] - group["first_estimate"]) // group["interval"] + 1
            correction = functional.bias_correction(group["beta2"], num_estimates)
        theta, new_m = functional.helene_step(
            theta,
            g,
            m,
            h,
            lr=group["lr"],
            beta1=group["beta1"],
            alpha=functional.anneal(group["step"], group["beta1"], group["anneal_horizon"]),
            gamma=group["gamma"],
            floor=group["floor"],
            denominator_eps=group["denominator_eps"],
            weight_decay=group["weight_decay"],
            h_correction=correction,
        )
        m.copy_(new_m)
        return theta


class _Sample(NamedTuple):
    """B, and where ĝ comes from: backward, a pair of its own, or else this step's SPSA gradient."""

    batch_size: int
    gradients: list[Tensor] | None = None
    slope: float = 0.0
    direction: Direction | None = None


def _with_floors(params: list[Any], floor: float | Sequence[float]) -> list[Any]:
    """Groups that carry their layer's floor."""
    groups = [dict(group) for group in params] if params and isinstance(params[0], dict) else [{"params": params}]
    if not params:
        return params
    per_layer = [floor] * len(groups) if isinstance(floor, int | float) else list(floor)
    if len(per_layer) != len(groups):
        raise ValueError(f"floor has {len(per_layer)} values for {len(groups)} layers; give one number, or one a layer")
    for group, value in zip(groups, per_layer, strict=True):
        group.setdefault("floor", value)
        positive(group["floor"], "floor", "the paper's ablation uses 1 to 3")
    return groups
