"""A run's bar: training loss, dev metric and loss, time left."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Self


class RunProgress:
    """Shown on stderr in a terminal only.

    Args:
        title: What runs.
        steps: Of the run.
        done: Steps made before an interruption.
        show: Whether anything is written at all.
    """

    def __init__(self, title: str, steps: int, done: int, show: bool) -> None:
        self._bar: Any = None
        if show and sys.stderr.isatty():
            from tqdm import tqdm  # type: ignore[import-untyped]

            self._bar = tqdm(total=steps, initial=done, desc=title, unit="step", mininterval=0.5, leave=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def advance(self, steps: int = 1) -> None:
        """So many more steps were made."""
        if self._bar is not None:
            self._bar.update(steps)

    def say(self, loss: float, metric: float | None, dev: float) -> None:
        """The newest numbers; no metric is known on the way where answers are generated."""
        if self._bar is not None:
            shown = "" if metric is None else f"dev {metric:.3f}, "
            self._bar.set_postfix_str(f"loss {loss:.3f}, {shown}dev loss {dev:.3f}")
