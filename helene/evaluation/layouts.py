"""Which copies are made together: the order in which modules run, cut into blocks that share scratch memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


def outermost(
    events: Sequence[int], owned: Sequence[Sequence[int]], sizes: Sequence[int], base: int, room: int
) -> dict[int, list[int]]:
    """The modules to look at in the place of all, each as far out as there is room for all copies that it then needs.

    A parameter belongs to a module around its own, where that ran around every forward of its own.

    Args:
        events: See `Layout`; of all modules with parameters, and of those around them.
        owned: Indices of each module's parameters.
        sizes: Bytes of each parameter's copy.
        base: Bytes of scratch memory that are used throughout.
        room: Bytes of scratch memory.

    Returns:
        By module, the indices of the parameters to copy while it runs.
    """
    around: dict[int, list[int]] = {}  # what ran around every forward of a module, the outermost first
    called: dict[int, set[int]] = {}  # what a module called
    running: list[int] = []
    for event in events:
        if event < 0:
            running.remove(-1 - event)
            continue
        around[event] = [k for k in around.get(event, running) if k in running]
        called.setdefault(event, set())
        for caller in running[-1:]:
            called[caller].add(event)
        running.append(event)
    below = {k: _reached(k, called) for k in called}
    above = {k: {outer for outer in called if k in below[outer]} for k in called}

    def fits(module: int) -> bool:
        """Whether the copies of all that may run while it does have room."""
        held = {i for k in below[module] | above[module] for i in owned[k]}
        return base + sum(sizes[i] for i in held) <= room

    wide, found = {k: fits(k) for k in called}, dict[int, list[int]]()
    for module, outer in around.items():
        if owned[module]:
            chosen = next((k for k in outer if wide[k]), module)
            found.setdefault(chosen, []).extend(i for i in owned[module] if i not in found[chosen])
    return found


def _reached(start: int, called: Mapping[int, set[int]]) -> set[int]:
    """A module, what it called, what these called, and so on."""
    found, rest = {start}, [start]
    while rest:
        new = called[rest.pop()] - found
        found |= new
        rest += new
    return found


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
