"""Whether there is time for another run, from what runs took before."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from helene.lab.runs.store import Record
from llm_bench.runs.config import RunConfig


class Clock:
    """Judges by what runs took before whether there is time for another.

    Args:
        minutes: From now; None is without a limit.
        records: Of runs before.
    """

    def __init__(self, minutes: float | None, records: Sequence[Record] = ()) -> None:
        self.end = None if minutes is None else time.monotonic() + 60 * minutes
        self.seconds: dict[tuple[Any, ...], float] = {}
        for record in records:
            self.note(record)

    def note(self, record: Record) -> None:
        """Learn from a run that went to its end."""
        steps = record.result.get("steps")
        if steps and steps == record.config.get("steps") and record.result.get("run_seconds"):
            self.seconds[_like(record.config)] = record.result["run_seconds"]
            longest = max(self.seconds.get(_near(record.config), 0.0), record.result["run_seconds"])
            self.seconds[_near(record.config)] = longest

    def has_time(self, config: RunConfig) -> bool:
        """Whether a run of this kind would end in time; of an unknown kind, the longest on its task is taken for it."""
        return self.end is None or time.monotonic() + self._expected(config) < self.end

    def why_not(self, config: RunConfig) -> str:
        """Why a run is not begun though time is left; empty where none is."""
        left = 0.0 if self.end is None else self.end - time.monotonic()
        return f"a run takes about {self._expected(config):.0f} s, and {left:.0f} s are left" if left > 0 else ""

    def _expected(self, config: RunConfig) -> float:
        values = config.to_dict()
        return self.seconds.get(_like(values), self.seconds.get(_near(values), 0.0))


def _like(config: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(config[name] for name in ("kind", "task", "method", "tuning", "steps", "role", "engine", "products"))


def _near(config: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(config[name] for name in ("kind", "task", "tuning", "steps", "engine", "products"))
