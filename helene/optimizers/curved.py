"""What the methods share that keep a diagonal curvature h."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from helene import curvature as sources
from helene import functional, noise
from helene.directions import chunks
from helene.optimizers import checks
from helene.optimizers.base import Base, Chunk, Options, Updates
from helene.optimizers.zeroth import Directions, ZerothOrder
from helene.probe import Closure

CURVATURE = "curvature"


class CurvatureOptions(Options, total=False):
    """Keyword arguments of the methods that keep h, see `Curved`."""

    curvature: str
    batch_size: int | None
    beta2: float
    interval: int
    bias_correction: bool
    first_estimate: int


class Curvature(CurvatureOptions, Directions, total=False):
    """Those of the zeroth-order ones among them."""


class Curved(Base):
    r"""Mixin that estimates h: h ← beta2 h + (1 − beta2) ĥ every ``interval`` steps, h_0 = 0.

    Options:
        curvature: A source of `helene.curvature`.
        batch_size: B of A-GNB, the number of examples in the minibatch; only the sources that use it need it.
        beta2: EMA of h, in [0, 1).
        interval: Steps between estimates (k), >= 1.
        bias_correction: Whether h is read as h / (1 − beta2ⁿ) after n estimates, which removes the pull of h_0 = 0.
        first_estimate: Step of the first estimate, >= 1.
    """

    _CURVATURE: ClassVar[Mapping[str, Any]] = {
        "curvature": "spsa",
        "batch_size": None,
        "beta2": 0.99,
        "interval": 10,
        "bias_correction": False,
        "first_estimate": 1,
    }
    _SHARED: ClassVar[tuple[str, ...]] = (
        *ZerothOrder._SHARED,
        CURVATURE,
        "batch_size",
        "interval",
        "first_estimate",
    )
    _sample: _Sample | None = None
    _curvature_closure: Closure | None = None

    def step(self, closure: Closure | None = None, curvature_closure: Closure | None = None) -> Tensor:  # type: ignore[override]
        """One update.

        Args:
            closure: As in `Base.step`.
            curvature_closure: For the sources that look at a minibatch of their own: the loss of that minibatch
                ("spsa_own_batch"; "backprop", where it defaults to ``closure``), or its logits ("sampled_labels").
                Called only at the steps that estimate h.

        Returns:
            The loss, detached, on its device; no forward is made for it alone.

        Raises:
            ValueError: If a closure returns no scalar, or the source needs a ``curvature_closure`` and there is none.
            FloatingPointError: If a loss is not finite; parameters and state are then unchanged.
        """
        source = self.param_groups[0]["curvature"]
        if source in ("spsa_own_batch", "sampled_labels") and curvature_closure is None:
            raise ValueError(f"curvature={source!r} needs step(closure, curvature_closure)")
        self._curvature_closure = curvature_closure
        try:
            return super().step(closure)
        finally:
            self._curvature_closure = self._sample = None

    @property
    def replayable(self) -> bool:
        """Whether an update is a function of the scalars and z: not where h comes from a backward."""
        return super().replayable and self.param_groups[0]["curvature"] in ("spsa", "spsa_own_batch", "none")

    def forwards_at(self, step: int) -> int:
        """Forwards that a step makes, a backward counted as two."""
        forwards = super().forwards_at(step)
        if not self._estimates_at(step):
            return forwards
        own = forwards if self.param_groups[0]["curvature"] == "spsa_own_batch" else 0
        return forwards + {"backprop": 3, "sampled_labels": 3}.get(self.param_groups[0]["curvature"], own)

    def _estimates_at(self, step: int) -> bool:
        hyper = self.param_groups[0]
        return hyper["curvature"] != "none" and functional.is_curvature_step(
            step, hyper["interval"], hyper["first_estimate"]
        )

    def _measure(self, closure: Closure, step: int) -> tuple[list[float], Tensor]:
        scalars, loss = super()._measure(closure, step)
        if self._estimates_at(step):
            hyper, own = self.param_groups[0], self._curvature_closure or closure
            params = [target.tensor for target in self._targets]
            if hyper["curvature"] == "spsa_own_batch":
                assert isinstance(self, ZerothOrder)
                scalars = scalars + self._slopes(own, step, noise.CURVATURE_DRAW)[0]
            elif hyper["curvature"] == "backprop":
                self._sample = _Sample(hyper["batch_size"], sources.mean_gradient(own, params)[0])
            elif hyper["curvature"] == "sampled_labels":
                gradients, num_labels = sources.sampled_label_gradient(own, params, hyper["seed"], step)
                self._sample = _Sample(num_labels, gradients)
        return scalars, loss

    def _num_scalars(self, step: int) -> int:
        own = self._estimates_at(step) and self.param_groups[0]["curvature"] == "spsa_own_batch"
        return super()._num_scalars(step) * (2 if own else 1)

    def _gradient(self, step: int, scalars: list[float]) -> Chunk:
        gradient = super()._gradient(step, scalars)
        self._curvature_gradient: Chunk | None = None
        if self._estimates_at(step):
            self._curvature_gradient = gradient
            if self._sample is not None:
                self._curvature_gradient = sources.by_chunks(self._sample.gradients)
            elif self.param_groups[0]["curvature"] == "spsa_own_batch":
                assert isinstance(self, ZerothOrder)
                own = scalars[len(self._coefficients(scalars)) :]
                self._curvature_gradient = self._combination(step, own, noise.CURVATURE_DRAW)
            self._shared_gradient = self._curvature_gradient is gradient
        return gradient

    def _estimate(self, index: int, span: slice, g: Tensor | None) -> Tensor | None:
        if self._curvature_gradient is None:
            return None
        if g is None or not self._shared_gradient:
            g = self._curvature_gradient(index, span.start, span.stop)
        batch_size = self._sample.batch_size if self._sample else self.param_groups[0]["batch_size"]
        return functional.a_gnb(g, batch_size)

    def _new_curvature(
        self, group: dict[str, Any], state: Updates, estimate: Tensor | None
    ) -> tuple[Tensor | None, Updates]:
        """h as of this step, None where none is kept, and what of it has to be stored."""
        h = state.get(CURVATURE)
        if h is None or estimate is None:
            return h, {}
        h = functional.curvature_ema(h, estimate, group["beta2"])
        return h, {CURVATURE: h}

    def _correction(self, group: dict[str, Any]) -> float:
        """What h is multiplied by where it is read."""
        estimates = (group["step"] - group["first_estimate"]) // group["interval"] + 1
        if not group["bias_correction"] or estimates < 1:
            return 1.0
        return functional.bias_correction(group["beta2"], estimates)

    def _layer_curvature(self, group: dict[str, Any]) -> list[Tensor]:
        """h of a layer's parameters as the step under way will read it, flat."""
        found, correction = [], self._correction(group)
        for index, (target, owner) in enumerate(zip(self._targets, self._groups, strict=True)):
            if owner is not group:
                continue
            h = self._read_state(index, CURVATURE, slice(0, target.tensor.numel())).clone()
            for start, end in chunks(target.tensor.numel()):
                span = slice(start, end)
                estimate = self._estimate(index, span, None)
                new, _ = self._new_curvature(group, {CURVATURE: h[span]}, estimate)
                assert new is not None
                h[span] = new
            found.append(h.mul_(correction))
        return found

    def _check(self, group: dict[str, Any]) -> None:
        super()._check(group)
        checks.one_of(group["curvature"], "curvature", sources.SOURCES)
        checks.fraction(group["beta2"], "beta2")
        for name in ("interval", "first_estimate"):
            checks.whole(group[name], name, 1, 1 << 32, "10 is usual for interval, 1 for first_estimate")
        if group["curvature"] in ("spsa", "spsa_own_batch", "backprop"):
            size = group["batch_size"]
            if not isinstance(size, int) or size < 1:
                raise ValueError(f"batch_size must be the number of examples in a minibatch, 1 or above, got {size!r}")
        if group["curvature"] not in ("backprop", "sampled_labels") and not isinstance(self, ZerothOrder):
            raise ValueError(f"curvature={group['curvature']!r} needs probes; use 'backprop' or 'sampled_labels' here")


class _Sample(NamedTuple):
    """B and ĝ, where ĝ comes from a backward."""

    batch_size: int
    gradients: list[Tensor]
