"""Streams of a GPU for two forwards and the copies that they read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

Stream = torch.cuda.Stream | None
Event = torch.cuda.Event | None


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
