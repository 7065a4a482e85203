r"""Evaluating L(theta + eps z) without touching theta.

Walking theta to theta + eps z and back does not return in 16-bit formats (it drifts by percents within hundreds of
steps). So theta is only read: a perturbed copy is written to scratch memory, rounded once to the parameter's dtype, and
the parameter points at it while the loss is evaluated. Pointing back is exact, also after an exception.

Given the model, a copy is one module's at a time, made just before that module's forward. Given parameters alone, and
for parameters that are read outside their own module's forward, the copy lives for the whole forward.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from helene import kernels, noise
from helene.reads import ReadWatch, reads_none, span

CHUNK = 1 << 17  # elements handled at once, so that temporaries stay in cache and memory stays bounded
DEVICE_CHUNK = 1 << 24  # off the CPU, where a launch costs more than what a cache saves

Closure = Callable[[], Any]


class Displacement(Protocol):
    """What parameters are moved along: a direction, or anything that gives its elements chunk by chunk."""

    def chunk(
        self, parameter: int, start: int, end: int, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Elements [start, end) for one parameter; the caller may overwrite them."""


class Direction(NamedTuple):
    """The key of one direction: with a parameter's id it gives z (see `helene.noise`).

    ``signs`` makes it a Rademacher direction; else z is standard normal.
    """

    seed: int
    step: int
    draw: int = 0
    signs: bool = False

    def chunk(
        self, parameter: int, start: int, end: int, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Elements [start, end) of z for one parameter: float32 values in the dtype asked for."""
        draw = noise.signs if self.signs else noise.normal
        return draw(self.seed, self.step, self.draw, parameter, start, end - start, device).to(dtype)


class Target(NamedTuple):
    """A parameter to perturb: its tensor, its id in `helene.noise`, its name in messages."""

    tensor: nn.Parameter
    id: int
    name: str


def chunks(size: int, device: torch.device | None = None) -> Iterator[tuple[int, int]]:
    """Bounds [start, end) of the pieces in which a flat tensor of that size is processed (larger ones off the CPU)."""
    chunk = CHUNK if device is None or device.type == "cpu" else DEVICE_CHUNK
    for start in range(0, size, chunk):
        yield start, min(start + chunk, size)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype arithmetic is done in: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def write_perturbed(out: Tensor, target: Target, direction: Displacement, radius: float) -> None:
    """out ← theta + radius · z in float32 (float64 for float64 parameters), rounded once to out's dtype."""
    if kernels.write_perturbed(out, target.tensor, target.id, direction, radius):
        return
    theta = target.tensor.detach()
    source, sink = theta.reshape(-1), out.view(-1) if out.is_contiguous() else torch.empty_like(theta).reshape(-1)
    wide = compute_dtype(theta.dtype)
    for start, end in chunks(theta.numel(), theta.device):
        z = direction.chunk(target.id, start, end, theta.device, wide)
        sink[start:end] = torch.add(source[start:end].to(wide), z, alpha=radius)
    if not out.is_contiguous():
        out.copy_(sink.view(theta.shape))


class Probe:
    """Evaluates a closure at theta + radius · z.

    Scratch memory: with a model, the bytes of the largest set of trained parameters that are in use at one time (one
    module's, plus those of the modules it is nested in); without, the bytes of all of them.

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
        self._checked = self.reads_none = False
        self._knows_model = model is not None
        self._calls: Counter[nn.Module] = Counter()  # forwards of each module in the last evaluation
        self._usual: Counter[nn.Module] = Counter()  # and in the one that was checked
        self._by_module = {} if model is None else held_by(self.targets, model)
        in_modules = {i for owned in self._by_module.values() for i in owned}
        self._full = [i for i in range(len(self.targets)) if i not in in_modules]
        if model is not None and is_compiled(model):
            self._use_full_copies(range(len(self.targets)), "the model is compiled, so its modules' hooks do not run")
            self._checked = True

    def loss(self, closure: Closure, direction: Displacement, radius: float) -> Tensor:
        """The closure's loss at theta + radius · z, as a 0-dim tensor on its device; theta is bit-equal afterwards.

        Raises:
            ValueError: If the closure returns no scalar, reads no parameter or one through an alias that no copy
                reaches, or the model has another parameter in its place.
            FloatingPointError: If the loss is not finite.
        """
        if self._checked:
            loss = self._evaluate(closure, direction, radius)
            passed_by = self._passed_by()
            if not passed_by:
                return loss
            # Their forward may have been called without their hooks, and has then read theta itself. From now on it
            # does not matter how they are read.
            self._use_full_copies(passed_by)
        loss, unperturbed = self._watched(closure, direction, radius)
        if unperturbed and self._by_module:
            self._use_full_copies(unperturbed, "read outside their own module's forward")
            loss, unperturbed = self._watched(closure, direction, radius)
        if unperturbed:
            raise ValueError(
                f"parameters {self._names(unperturbed)} are read through another tensor that shares their memory, so "
                "they would stay unperturbed; let the loss read the parameter itself"
            )
        idle = sorted({i for module, owned in self._by_module.items() if not self._calls[module] for i in owned})
        if idle:  # nobody knows how a later loss will read them
            self._use_full_copies(idle, "not read by the first loss, so freeze them if none reads them")
        self._usual = Counter(self._calls)
        self._checked = True
        return loss

    def _passed_by(self) -> list[int]:
        """Parameters of modules that ran less often than in the evaluation that was checked."""
        return sorted({i for m, owned in self._by_module.items() if self._calls[m] < self._usual[m] for i in owned})

    def loss_here(self, closure: Closure) -> Tensor:
        """The closure's loss at theta, by the code that the probes run: modules with hooks may take another path."""
        with torch.no_grad(), ExitStack() as stack:
            for module in self._by_module:
                stack.callback(module.register_forward_pre_hook(_pass_by).remove)
            torch.clear_autocast_cache()
            return scalar_loss(closure())

    def _watched(self, closure: Closure, direction: Displacement, radius: float) -> tuple[Tensor, list[int]]:
        """The loss, and the parameters read unperturbed."""
        with ReadWatch([t.tensor for t in self.targets]) as watch:
            loss = self._evaluate(closure, direction, radius, watch)
        self.reads_none = watch.reads_none and any(t.tensor.numel() for t in self.targets)
        if self.reads_none and self._knows_model:
            raise ValueError(reads_none([t.name for t in self.targets]))
        return loss, sorted(watch.seen)

    def _evaluate(
        self, closure: Closure, direction: Displacement, radius: float, watch: ReadWatch | None = None
    ) -> Tensor:
        swap = _Swap(self.targets, self.scratch, direction, radius, watch)
        with torch.no_grad(), ExitStack() as stack:
            stack.callback(swap.restore)
            swap.enter(self._full)
            for module, owned in self._by_module.items():
                self._check_held(module, owned)
                stack.enter_context(swap.hooked(module, owned))
            self._calls = swap.calls
            torch.clear_autocast_cache()  # it would hand the first probe's cast weights to the second
            loss = scalar_loss(closure())
            torch.clear_autocast_cache()
        self.scratch.settle()
        return loss

    def _check_held(self, module: nn.Module, owned: list[int]) -> None:
        held = {id(p) for p in module._parameters.values()}
        replaced = [i for i in owned if id(self.targets[i].tensor) not in held]
        if replaced:
            raise ValueError(
                f"parameters {self._names(replaced)} are no longer those of the model, so what it reads would stay "
                "unperturbed; make the optimizer anew after parameters are replaced or reparametrized"
            )

    def _use_full_copies(self, indices: Sequence[int], reason: str = "") -> None:
        moved = set(indices)
        self._full = sorted({*self._full, *moved})
        self._by_module = {m: [i for i in owned if i not in moved] for m, owned in self._by_module.items()}
        self._by_module = {m: owned for m, owned in self._by_module.items() if owned}
        if reason:
            num_bytes = sum(self.targets[i].tensor.nbytes for i in moved)
            names = self._names(sorted(moved))
            warnings.warn(f"{names}: {reason}; copied for the whole forward ({num_bytes} bytes)", stacklevel=4)

    def _names(self, indices: Sequence[int]) -> str:
        names = [self.targets[i].name for i in indices]
        return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def scalar_loss(value: Any) -> Tensor:
    """A closure's result as a detached floating-point 0-dim tensor; Python's numbers and integers become float64.

    Raises:
        ValueError: If it is None or not one number.
        FloatingPointError: If it is not finite.
    """
    if value is None:
        raise ValueError("the closure returned None; it must return the loss of one minibatch")
    try:
        loss = torch.as_tensor(value, dtype=torch.float64 if isinstance(value, float) else None).detach()
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"the closure returned a {type(value).__name__}; it must return one number") from None
    if loss.numel() != 1 or loss.is_complex():
        raise ValueError(
            f"the closure returned {loss.dtype} of shape {tuple(loss.shape)}; it must return one real number"
        )
    loss = loss.reshape(())
    if not loss.is_floating_point():
        loss = loss.double()  # a count of errors, say: its difference is taken, and means
    if not torch.isfinite(loss):
        raise FloatingPointError(
            f"the loss is {loss.item()}; parameters and state are unchanged. A smaller lr or eps or a wider dtype helps"
        )
    return loss


class _Swap:
    """Points parameters at perturbed copies, and back."""

    def __init__(
        self,
        targets: list[Target],
        scratch: Scratch,
        direction: Displacement,
        radius: float,
        watch: ReadWatch | None,
    ) -> None:
        self.targets, self.scratch, self.direction, self.radius, self.watch = targets, scratch, direction, radius, watch
        self.originals: dict[int, Tensor] = {}
        self.depth: Counter[int] = Counter()
        self.calls: Counter[nn.Module] = Counter()

    def enter(self, indices: Sequence[int]) -> None:
        if self.watch:
            self.watch.paused = True
        with torch.inference_mode(False), torch.no_grad():  # in that mode, pointing elsewhere has no effect
            for i in indices:
                if self.depth[i] == 0:
                    copy = self.scratch.take(self.targets[i].tensor)
                    write_perturbed(copy, self.targets[i], self.direction, self.radius)
                    self.originals[i] = self.targets[i].tensor.data
                    self.targets[i].tensor.data = copy
                    if self.watch and copy.numel():
                        self.watch.regions.append(span(copy))
                self.depth[i] += 1
        if self.watch:
            self.watch.paused = False

    def leave(self, indices: Sequence[int]) -> None:
        with torch.inference_mode(False), torch.no_grad():
            for i in indices:
                self.depth[i] -= 1
                if self.depth[i] == 0:
                    self.targets[i].tensor.data = self.originals.pop(i)

    @contextmanager
    def hooked(self, module: nn.Module, owned: list[int]) -> Iterator[None]:
        """While active, the module's own parameters are perturbed during each of its forwards."""
        marks: list[int] = []

        def before(*_: Any) -> None:
            self.calls[module] += 1
            marks.append(self.scratch.top)
            self.enter(owned)

        def after(_module: nn.Module, _args: Any, output: Any) -> None:
            if self.watch:
                self.watch.note_views(output, {i: self.targets[i].tensor for i in owned})
            self.leave(owned)
            self.scratch.top = marks.pop()

        first = module.register_forward_pre_hook(before, prepend=True)
        last = module.register_forward_hook(after, always_call=True)
        try:
            yield
        finally:
            first.remove()
            last.remove()

    def restore(self) -> None:
        for i, original in self.originals.items():
            self.targets[i].tensor.data = original
        self.originals.clear()
        self.scratch.top = 0


class Scratch:
    """Scratch memory: a stack of copies in one buffer per device, as large as the deepest nesting seen so far."""

    ALIGNMENT = 64

    def __init__(self) -> None:
        self.buffers: dict[torch.device, Tensor] = {}
        self.top = self.peak = 0

    def take(self, like: Tensor) -> Tensor:
        """Memory for a copy of a tensor, on top of the stack."""
        start = self.top
        self.top += -(-like.nbytes // self.ALIGNMENT) * self.ALIGNMENT
        self.peak = max(self.peak, self.top)
        buffer = self.buffers.setdefault(like.device, torch.empty(0, dtype=torch.uint8, device=like.device))
        if self.top > buffer.numel() or not _is_dense(like):
            return torch.empty_like(like)
        flat = buffer[start : start + like.nbytes].view(like.dtype)
        return flat.as_strided(like.shape, like.stride(), flat.storage_offset())

    def settle(self) -> None:
        """Grow the buffers to the peak, so that the next probe allocates nothing."""
        for device, buffer in self.buffers.items():
            if buffer.numel() < self.peak:
                self.buffers[device] = torch.empty(self.peak, dtype=torch.uint8, device=device)

    @property
    def num_bytes(self) -> int:
        """Bytes held between steps."""
        return sum(buffer.numel() for buffer in self.buffers.values())


def _pass_by(*_: Any) -> None:
    """A hook that does nothing."""


def _is_dense(tensor: Tensor) -> bool:
    return torch.empty_like(tensor, device="meta").stride() == tensor.stride()


def held_by(targets: list[Target], model: nn.Module) -> dict[nn.Module, list[int]]:
    """The modules that hold each parameter (several for tied weights)."""
    index = {id(target.tensor): i for i, target in enumerate(targets)}
    owners = {}
    for module in model.modules():
        owned = [index[id(p)] for p in module.parameters(recurse=False) if id(p) in index]
        if owned:
            owners[module] = owned
    return owners


def is_compiled(model: nn.Module) -> bool:
    """Whether the model, or a module of it, runs compiled: its hooks then do not."""
    return any(
        hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )
