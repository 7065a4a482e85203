r"""Evaluating L(theta + eps z) without touching theta.

Walking theta to theta + eps z and back does not return in 16-bit formats (it drifts by percents within hundreds of
steps). So theta is only read: a perturbed copy is written to scratch memory, rounded once to the parameter's dtype, and
the parameter points at it while the loss is evaluated. Pointing back is exact, also after an exception.

Given the model, a copy is made just before its module's forward: in a block with those of the modules that came next in
the evaluation before, as many as there is scratch memory for. Where that holds all copies of a module and of those that
have run inside it alone, hooks tell of that one in the place of all. Given parameters alone, and for parameters that
are read outside their own module's forward, the copy lives for the whole forward.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from helene.evaluation.blocks import Copies, Scratch
from helene.evaluation.directions import Displacement, Target
from helene.evaluation.layouts import Layout, lay_out, outermost
from helene.evaluation.losses import Closure, as_loss
from helene.evaluation.modules import around, held_by, is_compiled, listed, strangers
from helene.evaluation.reads import BufferWatch, ReadWatch, reads_none
from helene.evaluation.swap import Swap
from helene.evaluation.undo import Hooks, Undo


class Probe:
    """Evaluates a closure at theta + radius · z.

    Scratch memory: with a model, the bytes of the largest set of trained parameters that are in use at one time (one
    module's, plus those of the modules it is nested in), on a GPU at least `helene.evaluation.blocks.LEAST_BYTES` where
    there are as many; without, the bytes of all of them.

    Args:
        targets: The trained parameters.
        model: The module that reads them, if copies are to be made module by module. A compiled model gets full
            copies, with a warning: its modules' hooks do not run.
        scratch: Scratch memory to share with probes that are never active at the same time.

    Attributes:
        reads_none: Whether the evaluation that was checked read no parameter by an operation of torch. An error if the
            model is known; without it, the loss may read them out of torch's sight.
    """

    def __init__(
        self, targets: Sequence[Target], model: nn.Module | None = None, scratch: Scratch | None = None
    ) -> None:
        self.targets = list(targets)
        self.scratch = scratch or Scratch()
        self._copies = Copies(self.targets, self.scratch)
        self._checked = self._looked = self._gathered = self.reads_none = False
        self._watchable = True
        self._model = model
        by_module = {} if model is None else held_by(self.targets, model)
        held = [(m._parameters, name, p) for m in by_module for name, p in m._parameters.items() if p is not None]
        known = {id(target.tensor): i for i, target in enumerate(self.targets)}
        self._places = [(names, name, known[id(p)]) for names, name, p in held if id(p) in known]
        self._all_modules = {**({} if model is None else around(by_module, model)), **by_module}
        in_modules = {i for owned in by_module.values() for i in owned}
        self._set_modules(self._all_modules, [i for i in range(len(self.targets)) if i not in in_modules])
        if model is not None and is_compiled(model):
            self._use_full_copies(range(len(self.targets)), "the model is compiled, so its modules' hooks do not run")
            self._checked, self._watchable = True, False

    def _set_modules(
        self,
        by_module: Mapping[nn.Module, list[int]],
        full: list[int],
        calls: Sequence[int] = (),
        usual: Sequence[int] = (),
    ) -> None:
        """Take these modules, with the indices of their parameters, for those whose copies are made as they run.

        Args:
            by_module: The modules.
            full: Parameters that are copied for the whole forward.
            calls: Forwards of each module in the last evaluation.
            usual: And in the one that was checked.
        """
        modules, owned, none = list(by_module), list(by_module.values()), [0] * len(by_module)
        hooks = Hooks((m, partial(self._before, k), partial(self._after, k)) for k, m in enumerate(modules))
        self._guard = Hooks([] if self._model is None else [(self._model, self._alone, None)])
        self._transformed: set[int] = set()  # see `Swap.transformed`
        self._swap: Swap | None = None  # at work
        self._layout: tuple[int, Layout] | None = None  # and after how many moves it was made
        self._events: list[int] = []  # of the last evaluation that followed no layout
        # In one statement, so that no interrupt leaves the hooks of some modules with the numbers of others.
        self._modules, self._owned, self._hooks, self._full, self._calls, self._usual = (
            modules, owned, hooks, full, [*calls] or none, [*usual] or none,
        )  # fmt: skip

    def loss(self, closure: Closure, direction: Displacement, radius: float) -> Tensor:
        """The closure's loss at theta + radius · z, as a 0-dim tensor on its device; theta is bit-equal afterwards.

        Whether one on a GPU is finite is for `finite` to say, since asking makes the host wait.

        Raises:
            ValueError: If the closure returns no scalar, reads no parameter or one through an alias that no copy
                reaches, or the model has another parameter in its place.
            FloatingPointError: If the loss is on the CPU and not finite.
        """
        if self._checked:
            loss = self._evaluate(closure, direction, radius)
            passed_by = self._passed_by()
            if not passed_by:
                return loss
            # Their forward may have been called without their hooks, and has then read theta itself. From now on it
            # does not matter how they are read.
            self._use_full_copies(passed_by)
        buffers = BufferWatch(self._model)
        loss, unperturbed, read = self._watched(closure, direction, radius)
        if self._looked and (passed_by := self._passed_by()):
            self._use_full_copies(passed_by)
            loss, unperturbed, read = self._watched(closure, direction, radius)
        if self._transformed:
            self._use_full_copies(sorted(self._transformed), "their module runs inside a transform of torch.func")
            loss, unperturbed, read = self._watched(closure, direction, radius)
        if unperturbed and self._owned:
            self._use_full_copies(unperturbed, "read outside their own module's forward")
            loss, unperturbed, read = self._watched(closure, direction, radius)
        if unperturbed:
            raise ValueError(
                f"parameters {self._names(unperturbed)} are read through another tensor that shares their memory, so "
                "they would stay unperturbed; let the loss read the parameter itself"
            )
        idle = sorted({i for calls, owned in zip(self._calls, self._owned, strict=True) if not calls for i in owned})
        if idle:  # nobody knows how a later loss will read them
            self._use_full_copies(idle, "not read by the first loss, so freeze them if none reads them")
        unread = strangers(self.targets, self._model, read) if self._model is not None else ""
        for told in filter(None, () if self._looked else (unread, buffers.told)):
            warnings.warn(told, stacklevel=3)
        self._usual = self._calls
        self._checked = self._looked = True
        return loss

    @property
    def outgrown(self) -> bool:
        """Whether modules run inside others now whose copies together have no room, see `outermost`."""
        return self._gathered and self._copies.short

    def look_again(self) -> None:
        """Check the next evaluation as the first one was, where it can be; to be called between steps."""
        self._checked = not self._watchable
        if self.outgrown:
            self._spread()
        elif self._looked and self._events and not self._gathered:
            self._gather()

    def _gather(self) -> None:
        """Have hooks on the outermost modules alone, see `outermost`; both probes of a step need the same ones."""
        base = sum(self._copies.sizes[i] for i in self._full)
        found = outermost(self._events, self._owned, self._copies.sizes, base, self._copies.room)
        calls = [self._usual[k] for k in found]
        self._set_modules({self._modules[k]: indices for k, indices in found.items()}, self._full, calls, calls)
        self._copies.short, self._gathered = False, True

    def _spread(self) -> None:
        """Have hooks on all modules again. Each has run before, or its parameters have full copies."""
        left = _without(self._all_modules, self._full)
        self._set_modules(left, self._full, usual=[1] * len(left))
        self._gathered = False

    def _passed_by(self) -> list[int]:
        """Parameters of modules that ran less often than in the evaluation that was checked, or where none is made."""
        if self._calls == self._usual and not self._transformed:
            return []
        all_of = zip(self._calls, self._usual, self._owned, strict=True)
        return sorted({i for calls, usual, owned in all_of if calls < usual for i in owned} | self._transformed)

    def loss_here(self, closure: Closure) -> Tensor:
        """The closure's loss at theta, by the code that the probes run: modules with hooks may take another path."""
        undo = Undo()
        try:
            try:
                undo.modes()
                for module in self._modules:
                    undo.hook(module, _pass_by)
                torch.set_grad_enabled(False)
                torch.clear_autocast_cache()
                return self._run(closure)
            finally:
                undo.run()
        finally:
            undo.run()

    def _watched(self, closure: Closure, direction: Displacement, radius: float) -> tuple[Tensor, list[int], set[int]]:
        """The loss, the parameters read unperturbed, and those of which an operation was given the tensor itself."""
        watch = ReadWatch([t.tensor for t in self.targets])
        loss = self._evaluate(closure, direction, radius, watch)
        self.reads_none = watch.reads_none and any(t.tensor.numel() for t in self.targets)
        if self.reads_none and self._model is not None:
            raise ValueError(reads_none([t.name for t in self.targets]))
        return loss, sorted(watch.seen), watch.read

    def _evaluate(
        self, closure: Closure, direction: Displacement, radius: float, watch: ReadWatch | None = None
    ) -> Tensor:
        self._copies.begin(direction, radius)
        layout = self._laid_out() if watch is None else None
        whole = layout is not None and len(layout.openings) == 1  # all fit at once: no module has to tell of itself
        swap, undo = Swap(self._copies, direction, radius, self._owned, layout, watch, not self._gathered), Undo()
        self._transformed = swap.transformed
        try:
            try:
                undo.note(lambda: setattr(self, "_swap", None))
                undo.note(swap.restore)
                undo.modes()
                if watch is not None:
                    watch.__enter__()  # undone with the modes
                torch.set_grad_enabled(False)
                self._check_held()
                self._swap = swap
                swap.enter(range(len(self.targets)) if whole else self._full)
                (self._guard if whole else self._hooks).put_on(undo)
                torch.clear_autocast_cache()  # it would hand the first probe's cast weights to the second
                loss = self._run(closure)
            finally:
                undo.run()
        finally:
            undo.run()
        torch.clear_autocast_cache()
        self._calls = self._usual if whole else swap.calls
        if swap.events:
            self._events, self._layout = swap.events, None
        self.scratch.settle(sum(self._copies.sizes))
        return loss

    def _alone(self, *_: Any) -> None:
        if self._swap is not None:
            self._swap.check_thread()

    def _before(self, module: int, *_: Any) -> None:
        if self._swap is not None:
            self._swap.before(module)

    def _after(self, module: int, _module: nn.Module, _args: Any, output: Any) -> None:
        if self._swap is not None:
            self._swap.after(module, output)

    def _laid_out(self) -> Layout | None:
        """Blocks of the modules in the order of the last evaluation, None before there was one."""
        copies, held = self._copies, self._layout
        if self._events and (held is None or held[0] != copies.moves):
            base = sum(copies.sizes[i] for i in self._full)
            held = copies.moves, lay_out(self._events, self._owned, copies.sizes, base, copies.room)
            self._layout = held
        return None if held is None else held[1]

    def _run(self, closure: Closure) -> Tensor:
        """The closure's loss; see `unwritten`."""
        with unwritten(self.targets):
            return as_loss(closure())

    def _check_held(self) -> None:
        held = ((names[name] if name in names else None, i) for names, name, i in self._places)
        replaced = [i for parameter, i in held if parameter is not self.targets[i].tensor]
        if replaced:
            raise ValueError(
                f"parameters {self._names(replaced)} are no longer those of the model, so what it reads would stay "
                "unperturbed; make the optimizer anew after parameters are replaced or reparametrized"
            )

    def _use_full_copies(self, indices: Sequence[int], reason: str = "") -> None:
        moved = set(indices)
        left = _without(dict(zip(self._modules, self._owned, strict=True)), moved)
        kept = [k for k, module in enumerate(self._modules) if module in left]
        calls, usual = ([counts[k] for k in kept] for counts in (self._calls, self._usual))
        self._set_modules(left, sorted({*self._full, *moved}), calls, usual)
        if reason:
            num_bytes = sum(self.targets[i].tensor.nbytes for i in moved)
            names = self._names(sorted(moved))
            warnings.warn(f"{names}: {reason}; copied for the whole forward ({num_bytes} bytes)", stacklevel=4)

    def _names(self, indices: Sequence[int]) -> str:
        return listed(self.targets, indices)


def _without(by_module: Mapping[nn.Module, list[int]], indices: Collection[int]) -> dict[nn.Module, list[int]]:
    """Modules without some of their parameters, and without those that have none left; nothing where no one has any."""
    left = {module: [i for i in owned if i not in indices] for module, owned in by_module.items()}
    return {m: own for m, own in left.items() if own or not by_module[m]} if any(left.values()) else {}


@contextmanager
def unwritten(targets: Sequence[Target]) -> Iterator[None]:
    """Around a closure: raises ValueError if it has written to a parameter, where that can be seen."""
    before = [target.tensor._version for target in targets]
    yield
    changed = [i for i, target in enumerate(targets) if target.tensor._version != before[i]]
    if changed:
        raise ValueError(f"the closure changes parameters {listed(targets, changed)}; it must only return the loss")


def _pass_by(*_: Any) -> None:
    """A hook that does nothing."""
