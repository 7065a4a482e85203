"""The two probes of a step: both forwards, each unit's copies written just before they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from helene.engine.copies import Copies
from helene.engine.lanes import Lane, Worker, hooks
from helene.engine.plan import Changed
from helene.probe import Target, _ReadWatch

Stream = torch.cuda.Stream | None


class Streams:
    """Where the plus forward, the minus forward and the copies go; the copies give way to the forwards.

    Args:
        device: Where the parameters are. Off the GPU all streams are None.
        concurrent: Whether the two forwards may run at the same time. Otherwise they take turns on one stream, and
            the memory that one has freed serves the other.
    """

    def __init__(self, device: torch.device, concurrent: bool) -> None:
        self.plus: Stream = None
        self.minus: Stream = None
        self.copy: Stream = None
        if device.type == "cuda":
            self.plus = torch.cuda.Stream(device, priority=-1)
            self.minus = torch.cuda.Stream(device, priority=-1) if concurrent else self.plus
            self.copy = torch.cuda.Stream(device)

    def __iter__(self) -> Iterator[Stream]:
        return iter((self.plus, self.minus, self.copy))

    def current(self) -> Stream:
        """The stream that the caller works on."""
        return None if self.copy is None else torch.cuda.current_stream(self.copy.device)


class Pair:
    """Evaluates a loss at theta + eps z and theta − eps z.

    Args:
        targets: The trained parameters.
        copies: Their perturbed copies.
        workers: Two threads.
        streams: Where the work goes.
    """

    def __init__(
        self, targets: Sequence[Target], copies: Copies, workers: tuple[Worker, Worker], streams: Streams
    ) -> None:
        self.targets, self.copies, self.workers, self.streams = targets, copies, workers, streams
        self._events: list[torch.cuda.Event] = []

    def __call__(self, run: Callable[[], Any], watched: bool) -> tuple[Any, Any, list[int]]:
        """Both losses, and the parameters that were read unperturbed (looked for where ``watched``).

        Everything is enqueued on the streams and joined to the current one; nothing is waited for.

        Raises:
            Changed: If the modules ran in another order than the plan says.
        """
        self._events.clear()
        watches = [_ReadWatch([t.tensor for t in self.targets]) if watched else None for _ in range(2)]
        lanes = [
            Lane(self.copies.plan, run, partial(self.copies.rows, sign), stream)
            for sign, stream in ((1, self.streams.plus), (-1, self.streams.minus))
        ]
        for lane, watch in zip(lanes, watches, strict=True):
            lane.watch = watch
        try:
            with hooks(self.copies.plan.calls):
                self._run(lanes)
        finally:
            for lane in lanes:
                lane.cancel()
        seen = sorted(set().union(*(watch.seen for watch in watches if watch is not None)))
        return lanes[0].result, lanes[1].result, seen

    def _run(self, lanes: list[Lane]) -> None:
        plan, streams = self.copies.plan, self.streams
        here = streams.current()
        for stream in streams:
            self._wait(stream, here)
        with self._on(streams.copy):
            self.copies.write_resident()
        resident = self._record(streams.copy)
        for lane in lanes:
            self._wait_event(lane.stream, resident)
        done: list[list[torch.cuda.Event | None]] = []
        ready: dict[int, torch.cuda.Event | None] = {}
        for lane, sign in zip(lanes, (1, -1), strict=True):
            self._advance(lane, -1, sign)  # what comes before the first unit
        queue = 0
        for u, unit in enumerate(plan.units):
            while queue < len(plan.units) and plan.units[queue].after < u:
                after = plan.units[queue].after
                for event in done[after] if after >= 0 else ():
                    self._wait_event(streams.copy, event)
                with self._on(streams.copy):
                    self.copies.write(queue, (1, -1) if plan.units[queue].together else (1,))
                ready[queue] = self._record(streams.copy)
                queue += 1
            if not unit.together and lanes[1].stream is not streams.plus:
                self._wait(streams.plus, lanes[1].stream)  # one after the other from here on, on one stream: what the
                lanes[1].stream = streams.plus  # first has freed serves the second
            self._wait_event(lanes[0].stream, ready[u])
            self._advance(lanes[0], u, 1)
            marks = [self._record(lanes[0].stream)]
            if not unit.together:
                self._wait_event(streams.copy, marks[0])
                with self._on(streams.copy):
                    self.copies.write(u, (-1,))
                ready[u] = self._record(streams.copy)
            self._wait_event(lanes[1].stream, ready[u])
            self._advance(lanes[1], u, -1)
            marks.append(self._record(lanes[1].stream))
            done.append(marks)
        for lane in lanes:
            if not lane.finished:
                raise Changed("the forward has more units than the plan")
        for stream in streams:
            self._wait(here, stream)

    def _advance(self, lane: Lane, unit: int, sign: int) -> None:
        """Let a lane run one unit, its parameters pointing at its copies."""
        copies = self.copies.views(unit, sign)
        originals = {index: self.targets[index].tensor.data for index in copies}
        torch.clear_autocast_cache()  # it would hand one lane's cast weights to the other
        try:
            for index, copy in copies.items():
                self.targets[index].tensor.data = copy
            lane.advance(self.workers[0 if sign > 0 else 1])
        finally:
            for index, original in originals.items():
                self.targets[index].tensor.data = original
            torch.clear_autocast_cache()

    @contextmanager
    def _on(self, stream: Stream) -> Iterator[None]:
        if stream is None:
            yield
        else:
            with torch.cuda.stream(stream):
                yield

    def _record(self, stream: Stream) -> torch.cuda.Event | None:
        if stream is None:
            return None
        event = torch.cuda.Event()
        event.record(stream)
        self._events.append(event)
        return event

    def _wait_event(self, stream: Stream, event: torch.cuda.Event | None) -> None:
        if stream is not None and event is not None:
            stream.wait_event(event)

    def _wait(self, stream: Stream, other: Stream) -> None:
        if stream is not None and other is not None and stream != other:
            self._wait_event(stream, self._record(other))
