"""The update by torch's own operations: parameter by parameter, chunk by chunk, so that no other copy is held."""

from __future__ import annotations

from typing import TYPE_CHECKING

from helene import noise, precision
from helene.directions import CHUNK, chunks, compute_dtype
from helene.optimizers import state as storage

if TYPE_CHECKING:
    from helene.optimizers.base import Base, Chunk
    from helene.optimizers.rounding import RoundingWatch


def apply(optimizer: Base, watch: RoundingWatch | None, gradient: Chunk) -> None:
    """Move every parameter and its state.

    Args:
        optimizer: Whose step it is.
        watch: Noted what rounding to nearest loses.
        gradient: The gradient estimate.
    """
    for index, (target, group) in enumerate(zip(optimizer._targets, optimizer._groups, strict=True)):
        p = target.tensor
        theta, wide = p.detach().reshape(-1), compute_dtype(p.dtype)
        optimizer._allocate(p, group)
        for start, end in chunks(theta.numel(), p.device):
            span = slice(start, end)
            old = theta[span].to(wide)
            g = gradient(index, start, end)
            state = {name: storage.read(optimizer.state[p], name, span, wide) for name in optimizer._STATE}
            new, updates = optimizer._update(group, old, g, state, optimizer._estimate(index, span, g))
            optimizer._write_state(index, span, updates)
            if group["lr"] == 0:
                continue  # x - 0 would turn a negative zero positive
            if p.dtype == wide:
                theta[span] = new
            elif group["rounding"] == "stochastic":
                words = optimizer._words(noise.ROUNDING_DRAW, target, span)
                theta[span] = precision.round_stochastically(new, words, p.dtype)
            else:
                theta[span] = new
                if watch is not None:
                    watch.note(old, new, theta[span])
        if not p.is_contiguous():
            p.copy_(theta.view(p.shape))


def sample_rounding(optimizer: Base, watch: RoundingWatch, gradient: Chunk) -> None:
    """Show the watch what the update of each parameter's first elements loses, moving nothing."""
    for index, (target, group) in enumerate(zip(optimizer._targets, optimizer._groups, strict=True)):
        p = target.tensor
        if group["rounding"] == "stochastic" or p.dtype == (wide := compute_dtype(p.dtype)):
            continue
        span = slice(0, min(p.numel(), CHUNK))
        old, g = p.detach().reshape(-1)[span].to(wide), gradient(index, span.start, span.stop)
        state = {name: optimizer._read_state(index, name, span) for name in optimizer._STATE}
        new, _ = optimizer._update(group, old, g, state, optimizer._estimate(index, span, g))
        watch.note(old, new, new.to(p.dtype))
