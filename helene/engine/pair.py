"""The two probes of a step: both forwards, each unit's copies written before they are read."""

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
Event = torch.cuda.Event | None


class Streams:
    """Where the plus forward, the minus forward and the copies go.

    Args:
        device: Where the parameters are. Off the GPU all streams are None.
        concurrent: Whether the two forwards may run at the same time. Otherwise they take turns on one stream, and
            the memory that one has freed serves the other.
        priority: Of the copies' stream.
    """

    def __init__(self, device: torch.device, concurrent: bool, priority: int = 0) -> None:
        self.plus: Stream = None
        self.minus: Stream = None
        self.copy: Stream = None
        if device.type == "cuda":
            self.plus = torch.cuda.Stream(device, priority=-1)
            self.minus = torch.cuda.Stream(device, priority=-1) if concurrent else self.plus
            self.copy = torch.cuda.Stream(device, priority=priority)

    def __iter__(self) -> Iterator[Stream]:
        return iter((self.plus, self.minus, self.copy))

    def current(self) -> Stream:
        """The stream that the caller works on."""
        return None if self.copy is None else torch.cuda.current_stream(self.copy.device)

    @contextmanager
    def copying(self) -> Iterator[None]:
        """Inside, work goes to the stream of the copies."""
        if self.copy is None:
            yield
        else:
            with torch.cuda.stream(self.copy):
                yield

    def join(self, stream: Stream, other: Stream) -> None:
        """Let a stream wait for what another holds."""
        if stream is not None and other is not None and stream != other:
            wait(stream, record(other))


def record(stream: Stream) -> Event:
    """An event after what the stream holds."""
    if stream is None:
        return None
    event = torch.cuda.Event()
    event.record(stream)
    return event


def wait(stream: Stream, event: Event) -> None:
    """Let a stream wait for an event."""
    if stream is not None and event is not None:
        stream.wait_event(event)


class CopyQueue:
    """Writes units in their order, in pieces, each as soon as its region of the ring is free and its turn comes.

    Args:
        copies: The copies.
        streams: Where they go.
        paced: Whether pieces are written where the forwards have work other than matrix products, which leaves the
            GPU's units free; else as early as the ring allows.
    """

    def __init__(self, copies: Copies, streams: Streams, paced: bool) -> None:
        self.copies, self.streams = copies, streams
        self.ready: list[Event] = []
        self._used: list[list[Event]] = []
        self._written, self._credit = 0, 0.0
        units, calls = copies.plan.units, copies.plan.calls
        slack = 2.0 * sum(call.slack for call in calls[: units[-1].first]) if units else 0.0
        self._paced = paced and slack > 0.0
        self._rate = sum(copies.num_tiles(u) for u in range(1, len(units))) / slack if self._paced else 0.0

    def fill(self, unit: int, running: int) -> None:
        """Write what is needed up to a unit, the running one being the last whose start was enqueued."""
        while len(self.ready) <= unit:
            self._piece(running, None)
        while not self._paced and self._may_start(running):
            self._piece(running, None)

    def slack(self, lane: Lane, microseconds: float, running: int) -> None:
        """Write as much as falls to some time that follows what the lane has enqueued."""
        if not self._paced:
            return
        self._credit += self._rate * microseconds
        wait(self.streams.copy, record(lane.stream))
        while self._credit >= 1.0 and self._may_start(running):
            self._credit -= self._piece(running, int(self._credit))
        self._credit = min(self._credit, self._rate * microseconds)  # no more at once than its time allows

    def second_sign(self, unit: int, first: Event) -> Event:
        """Write the other sign of a unit that has room for one, once the first has been used."""
        wait(self.streams.copy, first)
        with self.streams.copying():
            self.copies.write(unit, (-1,))
        return record(self.streams.copy)

    def used(self, events: list[Event]) -> None:
        """Note when the next unit's copies have been read."""
        self._used.append(events)

    def _may_start(self, running: int) -> bool:
        units = self.copies.plan.units
        return len(self.ready) < len(units) and units[len(self.ready)].after < min(running, len(self._used))

    def _piece(self, running: int, most: int | None) -> int:
        """Write up to so many tiles of the next unit; how many were written."""
        index = len(self.ready)
        unit, total = self.copies.plan.units[index], self.copies.num_tiles(len(self.ready))
        if self._written == 0 and unit.after >= 0:
            for event in self._used[unit.after]:
                wait(self.streams.copy, event)
        count = total - self._written if most is None or not self.copies.fused else min(most, total - self._written)
        with self.streams.copying():
            self.copies.write(index, (1, -1) if unit.together else (1,), self._written, count)
        self._written += count
        if self._written >= total:
            self.ready.append(record(self.streams.copy))
            self._written = 0
        return max(count, 1)


class Pair:
    """Evaluates a loss at theta + eps z and theta − eps z.

    Args:
        targets: The trained parameters.
        copies: Their perturbed copies.
        workers: Two threads.
        streams: Where the work goes.
        paced: See `CopyQueue`.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        copies: Copies,
        workers: tuple[Worker, Worker],
        streams: Streams,
        paced: bool,
    ) -> None:
        self.targets, self.copies, self.workers, self.streams, self.paced = targets, copies, workers, streams, paced

    def __call__(self, run: Callable[[], Any], watched: bool) -> tuple[Any, Any, list[int]]:
        """Both losses, and the parameters that were read unperturbed (looked for where ``watched``).

        Everything is enqueued on the streams and joined to the current one; nothing is waited for.

        Raises:
            Changed: If the modules ran in another order than the plan says.
        """
        watches = [_ReadWatch([t.tensor for t in self.targets]) if watched else None for _ in range(2)]
        self._queue, self._running = CopyQueue(self.copies, self.streams, self.paced), -1
        lanes: list[Lane] = []
        for sign, stream in ((1, self.streams.plus), (-1, self.streams.minus)):
            lane = Lane(self.copies.plan, run, partial(self.copies.rows, sign), self._slack, stream)
            lane.watch = watches[len(lanes)]
            lanes.append(lane)
        try:
            with hooks(self.copies.plan.calls):
                self._run(lanes)
        finally:
            for lane in lanes:
                lane.cancel()
        seen = sorted(set().union(*(watch.seen for watch in watches if watch is not None)))
        return lanes[0].result, lanes[1].result, seen

    def _slack(self, microseconds: float) -> None:
        self._queue.slack(self._lane, microseconds, self._running)

    def _run(self, lanes: list[Lane]) -> None:
        plan, streams, queue = self.copies.plan, self.streams, self._queue
        here = streams.current()
        for stream in streams:
            streams.join(stream, here)
        with streams.copying():
            self.copies.write_resident()
        resident = record(streams.copy)
        for lane, sign in zip(lanes, (1, -1), strict=True):
            wait(lane.stream, resident)
            self._advance(lane, -1, sign)  # what comes before the first unit
        for u, unit in enumerate(plan.units):
            self._running = u
            queue.fill(u, u)
            if not unit.together and lanes[1].stream is not streams.plus:
                streams.join(streams.plus, lanes[1].stream)  # one after the other from here on, on one stream: what the
                lanes[1].stream = streams.plus  # first has freed serves the second
            wait(lanes[0].stream, queue.ready[u])
            self._advance(lanes[0], u, 1)
            first = record(lanes[0].stream)
            wait(lanes[1].stream, queue.ready[u] if unit.together else queue.second_sign(u, first))
            self._advance(lanes[1], u, -1)
            queue.used([first, record(lanes[1].stream)])
        for lane in lanes:
            if not lane.finished:
                raise Changed("the forward has more units than the plan")
        for stream in streams:
            streams.join(here, stream)

    def _advance(self, lane: Lane, unit: int, sign: int) -> None:
        """Let a lane run one unit, its parameters pointing at its copies."""
        self._lane = lane
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
