"""How far a sweep is and how long it will take, on stderr: a bar in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

_LINE_EVERY_SECONDS = 30.0


def readable_seconds(seconds: float) -> str:
    """A duration for people: ``45 s``, ``3 min 05 s``, ``2 h 10 min``."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


class Progress:
    """Counts cells and their expected cost; time left assumes that cost is proportional to time.

    Args:
        title: What is running.
        num_cells: Cells to run.
        total_cost: The sum of their costs.
        skipped: Cells already in the store, shown once.
        show: Whether anything is written.
    """

    def __init__(self, title: str, num_cells: int, total_cost: float, skipped: int = 0, show: bool = True) -> None:
        self.title, self.num_cells, self.total_cost, self.skipped = title, num_cells, total_cost, skipped
        self.done = self.failed = 0
        self.cost = 0.0
        self.start = self.last_line = time.monotonic()
        self._show = show and num_cells > 0
        self._bar = None
        if self._show and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[count]}"),
                TimeElapsedColumn(),
                TextColumn("{task.fields[left]}"),
                console=Console(stderr=True),
            )
            self._task = self._bar.add_task(self._title(), total=max(total_cost, 1e-9), count=self._count(), left="")

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        elif self._show:
            self._line(f"{self._title()}: {self.num_cells} cells to run")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._show and kind is None:
            self._line(f"{self.title}: {self._count()} in {readable_seconds(time.monotonic() - self.start)}")

    def advance(self, cost: float, failed: bool = False) -> None:
        """Count one more cell."""
        self.done += 1
        self.failed += failed
        self.cost += cost
        if self._bar is not None:
            self._bar.update(self._task, completed=self.cost, count=self._count(), left=self._left())
        elif self._show and time.monotonic() - self.last_line > _LINE_EVERY_SECONDS:
            self._line(f"{self.title}: {self._count()}, {self._left()}")

    def seconds_left(self) -> float | None:
        """Expected seconds until the last cell ends; None before the first one ended."""
        if not self.cost:
            return None
        return (time.monotonic() - self.start) * (self.total_cost - self.cost) / self.cost

    def _title(self) -> str:
        return f"{self.title} ({self.skipped} cells in the store already)" if self.skipped else self.title

    def _count(self) -> str:
        return f"{self.done}/{self.num_cells} cells" + (f", {self.failed} failed" if self.failed else "")

    def _left(self) -> str:
        left = self.seconds_left()
        return "" if left is None else f"{readable_seconds(left)} left"

    def _line(self, text: str) -> None:
        self.last_line = time.monotonic()
        print(text, file=sys.stderr, flush=True)
