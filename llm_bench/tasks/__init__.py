"""The tasks, found by their files: ``causal/NAME.py`` and ``masked/NAME.py`` each define ``TASK``."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from llm_bench.tasks.task import Example, Kind, Labels, Task

__all__ = ["Example", "Kind", "Labels", "Task", "get_task", "task_names"]

# The paper's order of columns; other tasks follow in alphabetic order.
_ORDER = {
    "masked": ("sst2", "sst5", "snli", "mnli", "rte", "trec"),
    "causal": ("sst2", "rte", "cb", "boolq", "wsc", "wic", "copa", "record", "squad"),
}


@cache
def task_names(kind: Kind) -> tuple[str, ...]:
    """Names of the tasks of a model kind, the paper's first, in its order."""
    package = importlib.import_module(f"llm_bench.tasks.{kind}")
    found = {module.name for module in pkgutil.iter_modules(package.__path__)}
    order = [name for name in _ORDER[kind] if name in found]
    return (*order, *sorted(found - set(order)))


@cache
def get_task(name: str, kind: Kind) -> Task:
    """The task of that name for that kind of model.

    Raises:
        ValueError: If there is none.
    """
    if kind not in _ORDER:
        raise ValueError(f"kind must be causal or masked, got {kind!r}")
    if name not in task_names(kind):
        raise ValueError(f"there is no {kind} task {name!r}; there are {', '.join(task_names(kind))}")
    return importlib.import_module(f"llm_bench.tasks.{kind}.{name}").TASK
