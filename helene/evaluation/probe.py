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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from helene.evaluation.blocks import Copies, Scratch
from helene.evaluation.directions import Displacement, Target
from helene.evaluation.hooked import Hooked
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
        self._held = [(names, name, p) for names, name, p in held if id(p) in known]
        outer = {} if model is None else around(by_module, model)
        self._all_modules = {**outer, **by_module}
        in_modules = {i for owned in by_module.values() for i in owned}
        full = [i for i in range(len(self.targets)) if i not in in_modules]
        self._hooked = Hooked(self._all_modules, full, (self._before, self._after))
        self._guard = Hooks([] if model is None else [(model, self._alone, None)])
        self._passed: dict[int, str] = {}  # see `Swap.passed`
        self._swap: Swap | None = None  # at work
        if model is not None and is_compiled(model):
            self._use_full_copies(range(len(self.targets)), "the model is compiled, so its modules' hooks do not run")
            self._checked, self._watchable = True, False

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
        if self._passed:
            self._use_full_copies(sorted(self._passed), ", or ".join(sorted(set(self._passed.values()))))
            loss, unperturbed, read = self._watched(closure, direction, radius)
        if unperturbed and self._hooked.modules:
            self._use_full_copies(unperturbed, "read outside their own module's forward")
            loss, unperturbed, read = self._watched(closure, direction, radius)
        if unperturbed:
            raise ValueError(
                f"parameters {self._names(unperturbed)} are read through another tensor that shares their memory, so "
                "they would stay unperturbed; let the loss read the parameter itself"
            )
        if idle := self._hooked.idle():  # nobody knows how a later loss will read them
            self._use_full_copies(idle, "not read by the first loss, so freeze them if none reads them")
        unread = strangers(self.targets, self._model, read) if self._model is not None else ""
        for told in filter(None, () if self._looked else (unread, buffers.told)):
            warnings.warn(told, stacklevel=3)
        self._hooked.usual = self._hooked.calls
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
            self._hooked, self._gathered = self._hooked.spread(self._all_modules), False
        elif self._looked and self._hooked.events and not self._gathered:  # not between the probes of a step
            self._hooked, self._gathered = self._hooked.gathered(self._copies), True
            self._copies.short = False

    def _passed_by(self) -> list[int]:
        """Parameters of modules that ran less often than in the evaluation that was checked, or where none is made."""
        return sorted(self._hooked.passed_by() | self._passed.keys())

    def loss_here(self, closure: Closure) -> Tensor:
        """The closure's loss at theta, by the code that the probes run: modules with hooks may take another path."""
        undo = Undo()
        try:
            try:
                undo.modes()
                for module in self._hooked.modules:
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
        watch = ReadWatch([t.tensor for t in self.targets], is_first=not self._looked)
        loss = self._evaluate(closure, direction, radius, watch)
        self.reads_none = watch.reads_none and any(t.tensor.numel() for t in self.targets)
        if self.reads_none and self._model is not None:
            raise ValueError(reads_none([t.name for t in self.targets]))
        return loss, sorted(watch.seen), watch.read

    def _evaluate(
        self, closure: Closure, direction: Displacement, radius: float, watch: ReadWatch | None = None
    ) -> Tensor:
        first = self._copies.begin(direction, radius)
        hooked = self._hooked
        layout = hooked.layout(self._copies) if watch is None else None
        whole = layout is not None and len(layout.openings) == 1  # all fit at once: no module has to tell of itself
        swap, undo = Swap(self._copies, direction, radius, hooked.owned, layout, watch, not self._gathered), Undo()
        self._passed = swap.passed
        try:
            try:
                undo.note(lambda: setattr(self, "_swap", None))
                undo.note(swap.restore)
                undo.modes()
                if watch is not None:
                    watch.__enter__()  # undone with the modes
                torch.set_grad_enabled(False)
                if first or watch is not None:
                    self._check_held()
                self._swap = swap
                swap.enter(range(len(self.targets)) if whole else hooked.full)
                (self._guard if whole else hooked.hooks).put_on(undo)
                torch.clear_autocast_cache()  # it would hand the first probe's cast weights to the second
                loss = self._run(closure)
            finally:
                undo.run()
        finally:
            undo.run()
        torch.clear_autocast_cache()
        hooked.hear(hooked.usual if whole else swap.calls, swap.events)
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

    def _run(self, closure: Closure) -> Tensor:
        """The closure's loss; see `unwritten`."""
        with unwritten(self.targets):
            return as_loss(closure())

    def _check_held(self) -> None:
        replaced = {id(p) for names, name, p in self._held if name not in names or names[name] is not p}
        if replaced:
            indices = [i for i, target in enumerate(self.targets) if id(target.tensor) in replaced]
            raise ValueError(
                f"parameters {self._names(indices)} are no longer those of the model, so what it reads would stay "
                "unperturbed; make the optimizer anew after parameters are replaced or reparametrized"
            )

    def _use_full_copies(self, indices: Sequence[int], reason: str = "") -> None:
        self._hooked, self._passed = self._hooked.without(set(indices)), {}
        if reason:
            num_bytes = sum(self.targets[i].tensor.nbytes for i in indices)
            names = self._names(sorted(indices))
            warnings.warn(f"{names}: {reason}; copied for the whole forward ({num_bytes} bytes)", stacklevel=4)

    def _names(self, indices: Sequence[int]) -> str:
        return listed(self.targets, indices)


@contextmanager
def unwritten(targets: Sequence[Target]) -> Iterator[None]:
    """Around a closure: raises ValueError if it has written to a parameter, where that can be seen."""
    before = _versions(targets)
    yield
    after = _versions(targets)
    if after != before:
        changed = [i for i, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
        raise ValueError(f"the closure changes parameters {listed(targets, changed)}; it must only return the loss")


def _versions(targets: Sequence[Target]) -> list[int]:
    return [target.tensor._version for target in targets]


def _pass_by(*_: Any) -> None:
    """A hook that does nothing."""
