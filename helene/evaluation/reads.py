"""Which parameters an evaluation reads, whether perturbed, which buffers it writes, whether it draws random numbers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class ReadWatch(TorchDispatchMode):
    """Notes which parameters' own memory is read by an operation, that is, read unperturbed.

    Attributes:
        seen: Parameters found so, and those of which a module returned a view: the copy is gone when that is read.
        read: Parameters of which an operation was given the tensor itself, and so the perturbed copy.
        regions: Spans of memory that hold perturbed copies; what reads there sets ``copies_read``.
        paused: Whether operations are let pass.
        is_first: Whether this is the first evaluation: each copy then has memory of its own, so that what is held of
            it afterwards is seen.
    """

    def __init__(self, tensors: Sequence[Tensor], is_first: bool = False) -> None:
        super().__init__()
        self.is_first = is_first
        self.tensors = list(tensors)
        self.spans = sorted((*span(t), i) for i, t in enumerate(tensors) if t.numel())
        self.starts = [start for start, _, _ in self.spans]
        self.seen: set[int] = set()
        self.indices = {id(t): i for i, t in enumerate(tensors)}
        self.read: set[int] = set()
        self.regions: list[tuple[int, int]] = []
        self.copies_read = False
        self.paused = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self.paused:
            for tensor in _tensors((*args, *kwargs.values())):
                self.look(tensor)
        return func(*args, **kwargs)

    def look(self, leaf: Any) -> None:
        """Note what an operation reads that is given this."""
        if has_span(leaf):
            if id(leaf) in self.indices:
                self.read.add(self.indices[id(leaf)])
            self._note(*span(leaf))

    @property
    def reads_none(self) -> bool:
        """Whether no operation read a parameter, perturbed or not."""
        return not (self.read or self.seen or self.copies_read)

    def note_views(self, output: Any, copies: dict[int, Tensor]) -> None:
        """Note the perturbed copies of which a module's output is a view: it will be read when they are gone."""
        spans = [span(leaf) for leaf in tree_leaves(output) if has_span(leaf)]
        for i, copy in copies.items():
            start, end = span(copy)
            if copy.numel() and any(a < end and start < b for a, b in spans):
                self.seen.add(i)

    def _note(self, start: int, end: int) -> None:
        if not self.copies_read:
            self.copies_read = any(a < end and start < b for a, b in self.regions)
        k = bisect_right(self.starts, end - 1)
        while k and self.spans[k - 1][1] > start:
            k -= 1
            self.seen.add(self.spans[k][2])


class BufferWatch:
    """Notices which buffers of a model in training mode have been written in place since; asks their version counters.

    In evaluation mode they are tables that a first forward may fill.
    """

    def __init__(self, model: nn.Module | None) -> None:
        training = model is not None and any(module.training for module in model.modules())
        named = model.named_buffers() if model is not None and training else ()
        self._seen = [(name, buffer, buffer._version) for name, buffer in named if not buffer.is_inference()]

    @property
    def told(self) -> str:
        """What to say of them, or nothing."""
        written = [name for name, buffer, version in self._seen if buffer._version != version]
        return writes_buffer(written[0]) if written else ""


class DrawWatch:
    """A closure that notices when it draws other numbers from torch's generators than at its call just before.

    One that seeds them itself draws the same each time.

    Args:
        closure: Gives the loss.
        devices: Those whose generators it may use beside the CPU's.
    """

    def __init__(self, closure: Callable[[], Any], devices: Iterable[torch.device]) -> None:
        self._closure, self._devices = closure, list(dict.fromkeys(devices))
        self._after: list[Tensor] | None = None

    def __call__(self) -> Any:
        """The closure's loss; raises ValueError if its draws go on where those of the call before have ended."""
        before = random_states(self._devices)
        loss = self._closure()
        after = random_states(self._devices)
        if self._after is not None and _equal(self._after, before) and not _equal(before, after):
            raise ValueError(f"{DRAWS}, draw the minibatch before the closure, or seed torch's generator in it")
        self._after = after
        return loss


DRAWS = "the loss draws random numbers, so L⁺ − L⁻ would mostly be their noise; turn dropout off (model.eval())"


def random_states(devices: Iterable[torch.device]) -> list[Tensor]:
    """Those of torch's generators: the CPU's, and of the devices that have one each."""
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in devices if device.type == "cuda")]


def _equal(states: list[Tensor], others: list[Tensor]) -> bool:
    return all(map(torch.equal, states, others))


def _tensors(arguments: Iterable[Any]) -> Iterator[Tensor]:
    """Those among an operator's arguments, which may be lists: much quicker than torch's pytree."""
    for argument in arguments:
        if isinstance(argument, Tensor):
            yield argument
        elif isinstance(argument, list | tuple):
            yield from _tensors(argument)


def has_span(leaf: Any) -> bool:
    """Whether it is a strided tensor with elements."""
    return isinstance(leaf, Tensor) and leaf.layout == torch.strided and not leaf.is_nested and leaf.numel() > 0


def span(tensor: Tensor) -> tuple[int, int]:
    """First address of its elements, and the address after the last."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def writes_buffer(name: str) -> str:
    """What to say where a loss changes a buffer."""
    return (
        f"the loss changes the model's buffer {name}, and would at each perturbed point; batch norm in training mode "
        "does so: call model.eval()"
    )


def reads_none(names: Sequence[str]) -> str:
    """What to say where a loss reads no trained parameter."""
    return (
        f"the loss reads none of the {len(names)} trained parameters ({', '.join(names[:3])}, ...), so every slope "
        "would be 0; are adapters merged or switched off, parameters replaced (assign=True), or is it another "
        "model's loss?"
    )
