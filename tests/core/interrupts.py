"""Ctrl-C at a chosen line of a call: what a signal does to the main thread, made to order."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

Place = tuple[str, int]


class Lines:
    """Counts the lines that a call executes, and raises KeyboardInterrupt before one of them.

    Args:
        where: Says by file name whether a frame's lines count.
        at: (file, line) and which time it is reached, from 0; None only counts.
    """

    def __init__(self, where: Callable[[str], bool], at: tuple[Place, int] | None = None) -> None:
        self.where, self.at, self.raised = where, at, False
        self.counts: dict[Place, int] = {}

    def __call__(self, function: Callable[[], Any]) -> Any:
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            return function()
        finally:
            sys.settrace(before)

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._line if self.where(frame.f_code.co_filename) else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            place = frame.f_code.co_filename, frame.f_lineno
            number = self.counts.get(place, 0)
            self.counts[place] = number + 1
            if self.at == (place, number) and not self.raised:
                self.raised = True
                raise KeyboardInterrupt
        return self._line


def places(function: Callable[[], Any], where: Callable[[str], bool]) -> list[tuple[Place, int]]:
    """Every line that a call executes, the first time and the last time that it does."""
    lines = Lines(where)
    lines(function)
    ends = [(place, number) for place, count in lines.counts.items() for number in {0, count - 1}]
    return sorted(ends)
