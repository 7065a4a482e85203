"""What is copied when: the order in which modules run, cut into units that share a ring of scratch memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from helene.evaluation.blocks import aligned
from helene.evaluation.directions import Target
from helene.evaluation.undo import Undo

ALIGNMENT = 256  # bytes between copies
UNIT_BYTES = 36 << 20  # consecutive modules are copied together up to this; one of OPT-1.3B's attention blocks fits
SMALL_BYTES = 32 << 20  # trained parameters up to this are copied whole, both signs, at the start


class Changed(Exception):
    """The model ran its modules in another order than the schedule says."""


class Call(NamedTuple):
    """One forward of a module that owns trained parameters.

    Attributes:
        module: The module.
        owned: Indices of its parameters; of a compiled block, its parts' too.
        rows: Whether only the rows that it looks up are read.
        in_graph: Whether it ran with gradients enabled, so that a backward in the loss may read the parameters later.
    """

    module: nn.Module
    owned: tuple[int, ...]
    rows: bool = False
    in_graph: bool = False


class Unit(NamedTuple):
    """Consecutive calls whose parameters are copied by one launch.

    Attributes:
        first: Index of its first call.
        owned: Indices of the parameters, each once.
        offsets: Where each copy starts, in bytes from the start of a sign's region.
        size: Bytes of one sign's region.
        start: Where the region of the plus sign starts in the ring.
        together: Whether both signs fit into the ring; else the second is written after the first has been used.
        after: Index of the last unit whose region this one overwrites, or −1.
    """

    first: int
    owned: tuple[int, ...]
    offsets: tuple[int, ...]
    size: int
    start: int = 0
    together: bool = True
    after: int = -1


class Schedule(NamedTuple):
    """The order of calls, their units, and the parameters that are copied whole before the forward starts."""

    calls: tuple[Call, ...]
    units: tuple[Unit, ...]
    resident: Unit | None
    ring_bytes: int

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch memory."""
        return self.ring_bytes + (2 * self.resident.size if self.resident else 0)

    @property
    def owned(self) -> set[int]:
        """Indices of the parameters that are copied; of the others, rows are looked up."""
        return {i for unit in (*self.units, *filter(None, (self.resident,))) for i in unit.owned}


def make_schedule(
    targets: Sequence[Target],
    calls: Sequence[Call],
    resident: set[int],
    unit_bytes: int = UNIT_BYTES,
    ring_bytes: int | None = None,
) -> Schedule:
    """Cut calls into units and place these in the ring.

    Args:
        targets: The trained parameters.
        calls: The order of calls, as `trace` found it.
        resident: Parameters that are copied whole; those that no call owns must be among them.
        unit_bytes: Bound on a unit of several calls.
        ring_bytes: Size of the ring; by default three units with both signs, at least the largest copy of one sign and
            at most that or 8 % of the parameters.

    Raises:
        ValueError: If the ring is smaller than a single copy.
    """
    sizes = [aligned(t.tensor.nbytes, ALIGNMENT) for t in targets]
    calls = [call._replace(owned=tuple(i for i in call.owned if i not in resident)) for call in calls]
    calls = [call for call in calls if call.owned]
    bound = unit_bytes if ring_bytes is None else min(unit_bytes, ring_bytes)
    cuts: list[tuple[int, list[int]]] = []
    for position, call in enumerate(calls):
        new = [] if call.rows else list(call.owned)
        held = cuts[-1][1] if cuts else []
        grown = held + [i for i in new if i not in held]
        if cuts and (not held or sum(sizes[i] for i in grown) <= bound):
            cuts[-1] = cuts[-1][0], grown
        else:
            cuts.append((position, new))
    units = [_unit(first, owned, sizes) for first, owned in cuts]
    largest = max((unit.size for unit in units), default=0)
    if ring_bytes is None:
        whole = sum(sizes) * 8 // 100
        ring_bytes = max(largest, min(6 * max((u.size for u in units if 2 * u.size <= whole), default=0), whole))
    if ring_bytes < largest:
        raise ValueError(f"scratch_bytes must be at least {largest}, the largest copy, got {ring_bytes}")
    whole_copy = _unit(0, sorted(resident), sizes) if resident else None
    return Schedule(tuple(calls), tuple(_place(units, ring_bytes)), whole_copy, ring_bytes if units else 0)


def schedule_of(
    targets: Sequence[Target],
    calls: Sequence[Call],
    resident: set[int] | None = None,
    unit_bytes: int = UNIT_BYTES,
    ring_bytes: int | None = None,
) -> Schedule:
    """The schedule for an order of calls.

    Few bytes are copied whole, and so are parameters that no call owns, and those that a backward may read.

    Args:
        targets: The trained parameters.
        calls: As `trace` found them.
        resident: Parameters to copy whole in any case.
        unit_bytes: See `make_schedule`.
        ring_bytes: See `make_schedule`.
    """
    if sum(t.tensor.nbytes for t in targets) <= SMALL_BYTES and ring_bytes is None:
        return make_schedule(targets, [], set(range(len(targets))))
    owned = {i for call in calls for i in call.owned} - {i for call in calls if call.in_graph for i in call.owned}
    whole = {i for i in range(len(targets)) if i not in owned} | (resident or set())
    return make_schedule(targets, calls, whole, unit_bytes, ring_bytes)


def _unit(first: int, owned: Sequence[int], sizes: Sequence[int]) -> Unit:
    offsets, size = [], 0
    for i in owned:
        offsets.append(size)
        size += sizes[i]
    return Unit(first, tuple(owned), tuple(offsets), size)


def _place(units: Sequence[Unit], ring_bytes: int) -> list[Unit]:
    placed: list[Unit] = []
    head = 0
    for unit in units:
        together = 2 * unit.size <= ring_bytes
        need = 2 * unit.size if together else unit.size
        start = head if head + need <= ring_bytes else 0
        head = start + need
        after = -1
        for k, other in enumerate(placed):
            taken = other.start + (2 * other.size if other.together else other.size)
            if need and other.size and other.start < head and start < taken:
                after = k
        placed.append(unit._replace(start=start, together=together, after=after))
    return placed


def trace(
    model: nn.Module,
    targets: Sequence[Target],
    run: Callable[[], Any],
    gathers: Callable[[Any], bool],
    blocks: Sequence[nn.Module] = (),
) -> list[Call]:
    """Run a forward at theta and note which modules run, in which order.

    Args:
        model: The module that reads the parameters.
        targets: The trained parameters.
        run: Evaluates the loss.
        gathers: Whether rows of an embedding's matrix can be perturbed alone.
        blocks: Modules that are called as one, whatever their parts own.
    """
    index = {id(target.tensor): i for i, target in enumerate(targets)}
    parts = {part for block in blocks for part in block.modules() if part is not block}
    calls: list[Call] = []
    undo = Undo()
    try:
        try:
            undo.modes()
            torch.set_grad_enabled(False)
            for module in model.modules():
                held = module.parameters(recurse=module in blocks)
                owned = tuple(index[id(p)] for p in held if id(p) in index)
                if owned and module not in parts:
                    hooks = _Hooks(calls, module, owned, gathers)
                    undo.hook(module, hooks.before, hooks.after)
            run()
        finally:
            undo.run()
    finally:
        undo.run()
    return calls


class _Hooks:
    def __init__(
        self, calls: list[Call], module: nn.Module, owned: tuple[int, ...], gathers: Callable[[Any], bool]
    ) -> None:
        self.calls, self.module, self.owned = calls, module, owned
        weight = getattr(module, "weight", None)
        self.table = isinstance(module, nn.Embedding) and len(owned) == 1 and gathers(weight)
        self.modes: list[tuple[int, LookupMode]] = []

    def before(self, *_: Any) -> None:
        self.calls.append(Call(self.module, self.owned, in_graph=torch.is_grad_enabled()))
        if self.table:
            assert isinstance(self.module.weight, nn.Parameter)
            mode = LookupMode(self.module.weight)
            self.modes.append((len(self.calls) - 1, mode))
            mode.__enter__()

    def after(self, *_: Any) -> None:
        if self.modes:
            position, mode = self.modes.pop()
            mode.__exit__(None, None, None)
            if mode.lookups and not mode.others:
                self.calls[position] = self.calls[position]._replace(rows=True)


class LookupMode(TorchFunctionMode):
    """Sees the functions that read a matrix: lookups of its rows, which it can answer itself, and others.

    Args:
        weight: The matrix.
        answer: Gives the rows for ids; without it the lookup happens as it is.
    """

    def __init__(self, weight: nn.Parameter, answer: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.weight, self.answer = weight, answer
        self.lookups = self.others = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        plain = {k: v for k, v in kwargs.items() if k not in ("padding_idx", "scale_grad_by_freq", "sparse")}
        if func is F.embedding and len(args) > 1 and args[1] is self.weight and plain.get("max_norm") is None:
            positional = len(args) > 3 and args[3] is not None  # max_norm renormalises the matrix itself
            if not positional:
                self.lookups += 1
                if self.answer is not None:
                    return self.answer(args[0])
                return func(*args, **kwargs)
        if any(leaf is self.weight for leaf in tree_leaves((args, kwargs))) and func not in _METADATA:
            self.others += 1
        return func(*args, **kwargs)


_METADATA = {
    getattr(Tensor, name).__get__
    for name in ("shape", "dtype", "device", "requires_grad", "ndim", "layout", "is_cuda", "is_meta")
} | {Tensor.size, Tensor.dim, Tensor.numel, Tensor.is_floating_point}
