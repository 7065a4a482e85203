"""Which copies are made together: the order in which modules run, cut into blocks that share scratch memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Opening(NamedTuple):
    """What happens where a block begins.

    Attributes:
        left: Parameters that no longer point at copies.
        indices: Those that do from here on.
        start: Where their copies lie, in bytes.
    """

    left: tuple[int, ...]
    indices: tuple[int, ...]
    start: int


class Layout(NamedTuple):
    """Blocks of the modules that a forward runs in a known order.

    Attributes:
        events: Modules entered, as their numbers k, and left, as −1 − k.
        openings: By the position of the event that they come before.
    """

    events: list[int]
    openings: dict[int, Opening]


def lay_out(
    events: Sequence[int], owned: Sequence[Sequence[int]], sizes: Sequence[int], base: int, room: int
) -> Layout:
    """Blocks of consecutive modules, as large as the room lets them be.

    Copies of modules that are still running when a block ends stay; the next block begins behind them.

    Args:
        events: See `Layout`.
        owned: Indices of each module's parameters.
        sizes: Bytes of each parameter's copy.
        base: First byte to use.
        room: Bytes of scratch memory; a block of a single module may exceed it.
    """
    openings: dict[int, Opening] = {}
    running: list[int] = []  # modules, the outermost first
    kept: dict[int, int] = {}  # parameters that an earlier block has copied -> where their copies end
    block: dict[int, None] = {}
    first, start, used, full = -1, base, base, False
    left: tuple[int, ...] = ()

    def close() -> None:
        """Place the block, those first that outlive it."""
        nonlocal kept, start, left
        alive = dict.fromkeys(i for k in running for i in owned[k])
        order = [*(i for i in alive if i in block), *(i for i in block if i not in alive)]
        openings[first] = Opening(left, tuple(order), start)
        ends, end = dict(kept), start
        for i in order:
            end += sizes[i]
            ends[i] = end
        left = tuple(i for i in ends if i not in alive)
        kept = {i: ends[i] for i in alive if i in ends}
        start = max(kept.values(), default=base)

    for position, event in enumerate(events):
        if event < 0:
            running.remove(-1 - event)
            full = full or any(i in kept and not any(i in owned[k] for k in running) for i in owned[-1 - event])
            continue  # what the block lies behind is free from here on, so that the next one can begin lower
        new = [i for i in owned[event] if i not in kept and i not in block]
        size = sum(sizes[i] for i in new)
        if new and (first < 0 or full or used + size > room):
            if first >= 0:
                close()
                new = [i for i in owned[event] if i not in kept]
                size = sum(sizes[i] for i in new)
            first, block, used, full = position, {}, start, False
        block |= dict.fromkeys(new)
        used += size
        running.append(event)
    if first >= 0:
        close()
    return Layout(list(events), openings)
