"""The modules whose hooks tell of their forwards while parameters are perturbed, and what they have told."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from torch import nn

from helene.evaluation.blocks import Copies
from helene.evaluation.layouts import Layout, lay_out, outermost
from helene.evaluation.undo import Hooks

Hook = Callable[..., Any]  # of a module's number, then as torch calls it


class Hooked:
    """Made anew where modules or parameters change, so that no interrupt leaves hooks with the numbers of others.

    Args:
        by_module: Indices of the parameters that are copied while each module runs.
        full: Indices of those that are copied for the whole forward.
        hooks: What is called before a module's forward, and after it.
        calls: Forwards of each module in the last evaluation.
        usual: And in the one that was checked.

    Attributes:
        modules: In the order of their numbers.
        owned: By a module's number, the parameters.
        full: As above.
        hooks: To be put on.
        calls: As above.
        usual: As above.
        events: Of the last evaluation that followed no layout, see `helene.evaluation.layouts.Layout`.
    """

    def __init__(
        self,
        by_module: Mapping[nn.Module, list[int]],
        full: list[int],
        hooks: tuple[Hook, Hook] | None,
        calls: Sequence[int] = (),
        usual: Sequence[int] = (),
    ) -> None:
        self.modules, self.owned, self.full = list(by_module), list(by_module.values()), full
        self.calls, self.usual = ([*counts] or [0] * len(by_module) for counts in (calls, usual))
        self.events: list[int] = []
        self._called = hooks if by_module else None  # they hold the probe, which then waits for a collection of garbage
        self.hooks = Hooks([])
        if self._called:
            before, after = self._called
            self.hooks = Hooks((m, partial(before, k), partial(after, k)) for k, m in enumerate(self.modules))
        self._layout: tuple[int, Layout] | None = None  # and after how many moves of the copies it was made

    def without(self, indices: Collection[int]) -> Hooked:
        """Some parameters copied for the whole forward."""
        left = without(dict(zip(self.modules, self.owned, strict=True)), indices)
        kept = [k for k, module in enumerate(self.modules) if module in left]
        calls, usual = ([counts[k] for k in kept] for counts in (self.calls, self.usual))
        return Hooked(left, sorted({*self.full, *indices}), self._called, calls, usual)

    def gathered(self, copies: Copies) -> Hooked:
        """The outermost modules alone, see `outermost`."""
        found = outermost(self.events, self.owned, copies.sizes, self._base(copies), copies.room)
        calls = [self.usual[k] for k in found]
        return Hooked({self.modules[k]: held for k, held in found.items()}, self.full, self._called, calls, calls)

    def spread(self, by_module: Mapping[nn.Module, list[int]]) -> Hooked:
        """All modules again; each has run before, or its parameters have full copies."""
        left = without(by_module, self.full)
        return Hooked(left, self.full, self._called, usual=[1] * len(left))

    def layout(self, copies: Copies) -> Layout | None:
        """Blocks of the modules in the order of the last evaluation, None before there was one."""
        held = self._layout
        if self.events and (held is None or held[0] != copies.moves):
            base = self._base(copies)
            held = copies.moves, lay_out(self.events, self.owned, copies.sizes, base, copies.room)
            self._layout = held
        return None if held is None else held[1]

    def hear(self, calls: list[int], events: list[int]) -> None:
        """Note an evaluation's forwards, and their order where it followed no layout."""
        self.calls = calls
        if events:
            self.events, self._layout = events, None

    def passed_by(self) -> set[int]:
        """Parameters of modules that ran less often than in the evaluation that was checked."""
        all_of = zip(self.calls, self.usual, self.owned, strict=True)
        return {i for calls, usual, owned in all_of if calls < usual for i in owned}

    def idle(self) -> list[int]:
        """Parameters none of whose modules ran."""
        ran = {i for calls, owned in zip(self.calls, self.owned, strict=True) if calls for i in owned}
        return sorted({i for owned in self.owned for i in owned} - ran)

    def _base(self, copies: Copies) -> int:
        return sum(copies.sizes[i] for i in self.full)


def without(by_module: Mapping[nn.Module, list[int]], indices: Collection[int]) -> dict[nn.Module, list[int]]:
    """Modules without some of their parameters, and without those that have none left; nothing where no one has any."""
    left = {module: [i for i in owned if i not in indices] for module, owned in by_module.items()}
    return {m: own for m, own in left.items() if own or not by_module[m]} if any(left.values()) else {}
