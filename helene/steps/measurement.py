"""What a step evaluates, and the gradient estimate that follows from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from helene import functional
from helene.evaluation.curvature import KeptGradient, by_chunks, mean_gradient
from helene.evaluation.losses import Closure, finite

if TYPE_CHECKING:
    from helene.steps.base import Base
    from helene.steps.plan import Probing, StepPlan

Chunk = Callable[[int, int, int], Tensor]  # (index of a parameter, start, end) -> elements of g
PairOfLosses = Callable[[float], tuple[float, float]]  # radius r -> L(theta + r z), L(theta − r z), finite or not


class Measured(NamedTuple):
    """What a step has measured.

    Attributes:
        scalars: What the update is a function of, beside z.
        loss: The loss to return, detached.
        sample: What cannot be a scalar: gradients of a backward.
    """

    scalars: list[float]
    loss: Tensor
    sample: Any = None


class Measurement:
    """A way to measure. It leaves parameters and state alone.

    Attributes:
        replayable: Whether the gradient estimate is a function of the scalars and z.
        sums_directions: Whether g is the sum of directions times `weights`, so that kernels can make it.
        slope_is_all: Whether a pair along one direction, at eps, tells all that its update is made of.
    """

    replayable, sums_directions, slope_is_all = True, False, True

    def forwards(self, probing: Any, num_blocks: int) -> int:
        """Forwards of a step, a backward counted as two; ``num_blocks`` are probed one after the other."""
        raise NotImplementedError

    def measure(self, optimizer: Any, closure: Closure, plan: StepPlan) -> Measured:
        """Evaluate what the step needs."""
        raise NotImplementedError

    def not_from_pairs(self, plan: StepPlan) -> str:
        """Why `from_pairs` does not give the scalars of `measure`, in one line; empty where it does."""
        return f"{plan.method} measures something else than pairs of losses"

    def from_pairs(self, plan: StepPlan, pair: PairOfLosses) -> list[float]:
        """The scalars, from pairs of losses along one direction of the whole model, the first of them at eps.

        Raises:
            FloatingPointError: If a loss that the step cannot do without is not finite.
        """
        raise NotImplementedError

    def num_scalars(self, probing: Any, num_blocks: int) -> int:
        """How many scalars it gives: one for each direction and block."""
        return int(probing.num_directions) * num_blocks

    def coefficients(self, plan: StepPlan, scalars: list[float]) -> list[float]:
        """Those scalars that are slopes along directions, empty where there are none."""
        return scalars

    def weights(self, plan: StepPlan, scalars: list[float]) -> list[float]:
        """What multiplies the directions in g."""
        return self.coefficients(plan, scalars)

    def gradient(self, optimizer: Any, plan: StepPlan, scalars: list[float], sample: Any) -> Chunk:
        """The gradient estimate, by chunks: the sum of directions times the weights."""
        return optimizer.combination(plan, self.weights(plan, scalars))

    def kept(self, sample: Any) -> KeptGradient | None:
        """The gradient, where a backward was replayed that keeps it for kernels; else None."""
        return None

    def estimate(self, optimizer: Any, plan: StepPlan, gradient: Any) -> Any:
        """ĥ by chunks where ``gradient`` itself gives one (see `helene.evaluation.curvature.Estimate`), else None."""
        return None


class Pairs(Measurement):
    r"""SPSA: a pair of probes for each direction (and each block of parameters).

    g = (1/q) Σ_j c_j z_j,  c_j = (L(theta + eps z_j) − L(theta − eps z_j)) / (2 eps), or one-sided
    c_j = (L(theta + eps z_j) − L(theta)) / eps with L(theta) evaluated once.
    """

    sums_directions = True

    def forwards(self, probing: Probing, num_blocks: int) -> int:
        """See `Measurement`."""
        probes = probing.num_directions * num_blocks
        return 2 * probes if probing.two_sided else probes + 1

    def measure(self, optimizer: Any, closure: Closure, plan: StepPlan) -> Measured:
        """See `Measurement`."""
        return Measured(*self.slopes(optimizer, closure, plan))

    def not_from_pairs(self, plan: StepPlan) -> str:
        """See `Measurement`; a subclass has a `from_pairs` of its own, or none."""
        probing: Any = plan.probing
        if "from_pairs" not in vars(type(self)):
            return super().not_from_pairs(plan)
        if probing.num_directions != 1 or not probing.two_sided:
            return f"num_directions is {probing.num_directions} and two_sided is {probing.two_sided}"
        if not probing.is_dense:
            return f"distribution is {probing.distribution!r} and direction_per_layer is {probing.direction_per_layer}"
        return ""

    def from_pairs(self, plan: StepPlan, pair: PairOfLosses) -> list[float]:
        """See `Measurement`: c."""
        probing: Any = plan.probing
        plus, minus = finite(pair(probing.eps))
        return [functional.projected_gradient(plus, minus, probing.eps)]

    def slopes(
        self, optimizer: Any, closure: Closure, plan: StepPlan, first_draw: int = 0
    ) -> tuple[list[float], Tensor]:
        """c/q of each direction (in each block of parameters), and the mean loss of the probes."""
        probing: Any = plan.probing
        eps, base = probing.eps, None if probing.two_sided else optimizer.loss_here(closure)
        pairs, lengths = [], []
        for draw in range(probing.num_directions):
            direction = optimizer.direction(plan, first_draw + draw)
            for block, probe in enumerate(optimizer.probes):
                length = optimizer.length(plan, direction, block)
                plus = probe.loss(closure, direction, eps * length)
                minus = probe.loss(closure, direction, -eps * length) if base is None else base
                pairs.append(torch.stack([plus, minus]))
                lengths.append(length / probing.num_directions)
        losses = torch.stack(pairs)
        values = finite(losses)  # what the host waits for, once
        plus, minus = values[::2], values[1::2]
        optimizer.resolution.note(plus, minus, losses.dtype)
        radius = eps if base is None else eps / 2.0
        slopes = [functional.projected_gradient(a, b, radius) for a, b in zip(plus, minus, strict=True)]
        coefficients = [c * length for c, length in zip(slopes, lengths, strict=True)]
        return coefficients, losses.mean() if base is None else base


class Backward(Measurement):
    """The gradient of the closure's loss, by a backward."""

    replayable = False

    def forwards(self, probing: Any, num_blocks: int) -> int:
        """See `Measurement`."""
        return 3

    def num_scalars(self, probing: Any, num_blocks: int) -> int:
        """See `Measurement`."""
        return 0

    def measure(self, optimizer: Base, closure: Closure, plan: StepPlan) -> Measured:
        """See `Measurement`."""
        gradients, loss = mean_gradient(closure, [target.tensor for target in optimizer.targets])
        return Measured([], loss, gradients)

    def gradient(self, optimizer: Base, plan: StepPlan, scalars: list[float], sample: Any) -> Chunk:
        """See `Measurement`."""
        return by_chunks(sample)

    def kept(self, sample: Any) -> KeptGradient | None:
        """See `Measurement`."""
        return sample if isinstance(sample, KeptGradient) else None
