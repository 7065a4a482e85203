"""The update by torch's own operations: parameter by parameter, chunk by chunk, so that no other copy is held."""

from __future__ import annotations

from typing import TYPE_CHECKING

from helene import noise, precision
from helene.curvature import Estimate
from helene.directions import CHUNK, chunks, compute_dtype
from helene.optimizers.measurement import Chunk
from helene.plan import StepPlan

if TYPE_CHECKING:
    from helene.optimizers.base import Base
    from helene.optimizers.rounding import RoundingWatch


def update(
    optimizer: Base, plan: StepPlan, watch: RoundingWatch | None, gradient: Chunk, estimate: Estimate | None
) -> None:
    """Move every parameter and its state.

    Args:
        optimizer: Whose step it is.
        plan: Of the step.
        watch: Noted what rounding to nearest loses.
        gradient: The gradient estimate.
        estimate: The curvature estimate, where this step makes one.
    """
    for index, target in enumerate(optimizer.targets):
        p, rule, kept = target.tensor, plan.rules[target.layer], plan.storage[target.layer]
        theta, wide = p.detach().reshape(-1), compute_dtype(p.dtype)
        optimizer.allocate(target, rule, kept)
        for start, end in chunks(theta.numel(), p.device):
            span = slice(start, end)
            old = theta[span].to(wide)
            g = gradient(index, start, end)
            state = optimizer.read_state(index, rule, span)
            new, moved = rule.update(plan.step, old, g, state, estimate and estimate(index, start, end, g))
            optimizer.write_state(index, plan, span, state, moved)
            if rule.lr == 0:
                continue  # x - 0 would turn a negative zero positive
            if p.dtype == wide:
                theta[span] = new
            elif kept.rounding == "stochastic":
                words = optimizer.words(plan, noise.ROUNDING_DRAW, target, span)
                theta[span] = precision.round_stochastically(new, words, p.dtype)
            else:
                theta[span] = new
                if watch is not None:
                    watch.note(old, new, theta[span])
        if not p.is_contiguous():
            p.copy_(theta.view(p.shape))


def sample_rounding(
    optimizer: Base, plan: StepPlan, watch: RoundingWatch, gradient: Chunk, estimate: Estimate | None
) -> None:
    """Show the watch what the update of each parameter's first elements loses, moving nothing."""
    for index, target in enumerate(optimizer.targets):
        p, rule = target.tensor, plan.rules[target.layer]
        if plan.storage[target.layer].rounding == "stochastic" or p.dtype == (wide := compute_dtype(p.dtype)):
            continue
        span = slice(0, min(p.numel(), CHUNK))
        old, g = p.detach().reshape(-1)[span].to(wide), gradient(index, span.start, span.stop)
        state = optimizer.read_state(index, rule, span)
        new, _ = rule.update(plan.step, old, g, state, estimate and estimate(index, span.start, span.stop, g))
        watch.note(old, new, new.to(p.dtype))
