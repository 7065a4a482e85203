"""The step for one shape of batch: scheduled, run, captured, replayed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from helene.engine.batches import Layout, Static
from helene.engine.graphs import Recorded, Repeated, capturing, give_up
from helene.engine.pairs.copies import Copies
from helene.engine.pairs.pair import Pair, check_independence
from helene.engine.pairs.schedule import Call, Changed, Schedule, schedule_of, trace
from helene.engine.pairs.shared import Shared
from helene.evaluation.agreement import check_agreement
from helene.evaluation.compiled import Compiled
from helene.evaluation.losses import one_number
from helene.evaluation.reads import DRAWS, random_states, reads_none

_ATTEMPTS = 3  # schedules until a forward is taken for unpredictable
_UNPREDICTABLE = (
    "the order in which the model's modules run changes from one forward to the next, so that copies cannot be made in "
    "time; use optimizer.step(closure)"
)


class BatchStep:
    """The step for one shape of batch.

    Attributes:
        steps: How many steps it has made.
        graph: The recorded forwards (and the update, where that is recorded with them), or None.
        tail: The recorded update where an exchange between ranks comes before it, or None.
        losses: L⁺ and L⁻ of the last replay.
        read: Parameters that the last forwards run by Python have read.
        no_graph: Why it is not captured, in one line; empty while nothing speaks against it.
    """

    def __init__(self, shared: Shared, layout: Layout) -> None:
        self.shared, self.static = shared, Static(layout, shared.device)
        self.steps = 0
        self.graph: Recorded | None = None
        self.tail: Recorded | None = None
        self.losses: Tensor | None = None
        self.read: set[int] = set()
        self.no_graph = ""
        self._calls: list[Call] | None = None
        self._resident: set[int] = set()
        self._copies: Copies | None = None
        self._buffers: list[Tensor] = []  # what the graph may read; the model may since have made others

    @property
    def schedule(self) -> Schedule | None:
        """When what is copied; None before it is known."""
        return self._copies.schedule if self._copies is not None else None

    def pair(self, check: bool) -> tuple[Tensor, Tensor]:
        """Both losses at theta ± eps z, 0-dim, in the stream's order; ``check`` compares them with forwards one by one.

        Raises:
            ValueError: If a parameter cannot be perturbed, or the loss is no scalar or draws random numbers.
        """
        for _ in range(_ATTEMPTS):
            before, written = random_states([self.shared.device]), _versions(self.static.leaves)
            losses = self._attempt()
            if losses is None:
                continue
            plus, minus = (scalar(loss) for loss in losses)
            _check_random(before, self.shared.device)
            if _versions(self.static.leaves) != written:
                raise ValueError("the loss writes to the batch, so that L⁻ sees another one than L⁺; let it copy first")
            if check:
                check_independence((plus, minus), self._one_by_one)
            return plus, minus
        raise ValueError(_UNPREDICTABLE)

    def _one_by_one(self) -> tuple[Any, Any]:
        plus, minus, _ = self._pair()(self._run, watched=False, one_by_one=True)
        return plus, minus

    def _pair(self) -> Pair:
        shared = self.shared
        return Pair(shared.model, shared.targets, self._ready(), shared.workers, shared.streams)

    def _attempt(self) -> tuple[Any, Any] | None:
        """Both losses, or None if the schedule was found wrong; it has then been dropped."""
        targets = self.shared.targets
        try:
            plus, minus, watches = self._pair()(self._run, watched=True)
        except Changed:
            self._calls = self._copies = None
            return None
        if all(watch.reads_none for watch in watches):
            raise ValueError(reads_none([t.name for t in targets]))
        self.read = set().union(*(watch.read for watch in watches))
        unperturbed = sorted(set().union(*(watch.seen for watch in watches)))
        if not unperturbed:
            return plus, minus
        if set(unperturbed) <= self._resident or not self._has_calls_of(unperturbed):
            names = ", ".join(targets[i].name for i in unperturbed[:4])
            raise ValueError(
                f"parameters {names} are read through another tensor that shares their memory, so they would stay "
                "unperturbed; let the loss read the parameter itself"
            )
        self._copies = None
        self._resident |= set(unperturbed)
        return None

    def _has_calls_of(self, indices: list[int]) -> bool:
        """Whether any of these parameters is copied unit by unit, so that a copy for the whole forward may help."""
        assert self._copies is not None
        return any(i in call.owned for call in self._copies.schedule.calls for i in indices)

    def compile(self, compiled: Compiled) -> Exception | None:
        """Compile both forwards for this shape, which a capture cannot, and compare the losses with plain ones.

        Returns:
            What speaks against it: an error of the compiler, or losses that differ by more than rounding.

        Raises:
            Exception: What the forwards raise as they are.
        """
        plain = self._again()

        def run() -> Any:
            with compiled.compiling():  # here, for it holds for the thread
                return self._run()

        try:
            made = self._pair()(run, watched=False, compiled=compiled)[:2]
            check_agreement(self.shared.model, *([float(loss) for loss in losses] for losses in (plain, made)))
        except Exception as error:
            return error
        return None

    def _again(self) -> tuple[Any, Any]:
        """Both losses, reads of the parameters not watched."""
        for _ in range(_ATTEMPTS):
            try:
                return self._pair()(self._run, watched=False)[:2]
            except Changed:
                self._calls = self._copies = None
        raise ValueError(_UNPREDICTABLE)

    def record(self, update: Callable[[], None], apart: bool, repeat: bool) -> None:
        """Record the forwards and what follows them.

        Args:
            update: Enqueues what follows, given the losses.
            apart: Whether that is recorded on its own.
            repeat: Whether the calls are made anew at each replay, and nothing is captured.

        Raises:
            RuntimeError: If something in the forward cannot be captured.
        """
        self._buffers = list(self.shared.model.buffers())
        if repeat:
            self.graph = Repeated(lambda: self._enqueue(None if apart else update))
            self.tail = Repeated(update) if apart else None
            return
        here = torch.cuda.current_stream(self.shared.device)
        for _ in range(_ATTEMPTS):
            self._ready()  # allocates outside of the graph's pool
            graphs = [torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()]
            try:
                return self._capture(graphs, update, apart)
            except BaseException as error:
                self.graph = self.tail = self.shared.pool = None
                give_up(graphs, here)
                if self._copies is not None or not isinstance(error, Exception):
                    self._copies = None
                    raise  # else the schedule was wrong, and another may do
        raise RuntimeError(_UNPREDICTABLE)

    def _capture(self, graphs: list[torch.cuda.CUDAGraph], update: Callable[[], None], apart: bool) -> None:
        shared = self.shared
        if shared.pool is None:
            shared.pool = torch.cuda.graph_pool_handle()
        with capturing(graphs[0], shared.pool):
            self._enqueue(None if apart else update)
        if apart:
            with capturing(graphs[1], shared.pool):
                update()
            self.tail = graphs[1]
        self.graph = graphs[0]

    def _enqueue(self, update: Callable[[], None] | None) -> None:
        try:
            plus, minus, _ = self._pair()(self._run, watched=False, compiled=self.shared.compiled)
        except Changed:
            self._calls = self._copies = None
            raise
        losses = torch.stack([scalar(plus), scalar(minus)])
        if self.losses is None or self.losses.dtype != losses.dtype:
            raise RuntimeError(f"the loss is {losses.dtype} when captured")
        self.losses.copy_(losses)
        if update is not None:
            update()

    def _run(self) -> Any:
        return self.shared.loss(self.shared.model, self.static.batch)

    def _ready(self) -> Copies:
        shared = self.shared
        if self._copies is None:
            if self._calls is None:
                self._calls = self._trace()
            schedule = schedule_of(shared.targets, self._calls, self._resident, **shared.options)
            self._copies = Copies(shared, schedule)
            shared.ring = self._copies.ring
        return self._copies

    def _trace(self) -> list[Call]:
        shared, before = self.shared, random_states([self.shared.device])
        blocks = shared.compiled.blocks if shared.compiled is not None else ()
        calls = trace(shared.model, shared.targets, self._run, self._has_rows, blocks)
        _check_random(before, shared.device)
        return calls

    def _has_rows(self, weight: Any) -> bool:
        fused = self.shared.fused and isinstance(weight, Tensor) and weight.dim() == 2
        return bool(fused and weight.shape[1] % 4 == 0)


def scalar(loss: Any) -> Tensor:
    """A loss as a 0-dim tensor; whether it is finite is for later, for asking makes the host wait.

    Raises:
        ValueError: If it is no tensor with one real element.
    """
    if not isinstance(loss, Tensor):
        raise ValueError(f"the loss returned a {type(loss).__name__}; it must return a tensor with one real number")
    return one_number(loss.detach(), "the loss")


def _check_random(before: list[Tensor], device: torch.device) -> None:
    if any(not torch.equal(a, b) for a, b in zip(before, random_states([device]), strict=True)):
        raise ValueError(DRAWS)


def _versions(leaves: list[Any]) -> list[int]:
    """How often each tensor of a batch has been written to."""
    return [x._version for x in leaves if isinstance(x, Tensor) and not x.is_inference()]
