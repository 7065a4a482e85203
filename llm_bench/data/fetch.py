"""Filling the data folder from the Hugging Face Hub."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from helene.inputs.files import write_whole
from llm_bench.tasks.task import Task


def fetch(task: Task, folder: Path, load: Any = None) -> list[Path]:
    """Write a task's splits as JSONL with ``labels.json`` beside them; returns the files.

    Args:
        task: Says where on the Hub, and which split plays which part.
        folder: The data folder; ``TASK/`` is made inside it.
        load: Stands in for ``datasets.load_dataset`` in tests.

    Raises:
        ValueError: If the package `datasets` is missing or the Hub has no such data set.
        OSError: If a file cannot be written; those before it are there.
    """
    load = load or _hub_loader()
    target = folder / task.name
    target.mkdir(parents=True, exist_ok=True)
    written = []
    for ours, theirs in task.hub.splits.items():
        try:
            rows = load(task.hub.path, task.hub.config, split=theirs)
        except Exception as err:
            raise ValueError(
                f"cannot load {task.hub.path} ({task.hub.config or 'default'}, {theirs}) from the Hub: "
                f"{type(err).__name__}: {err}; put {task.name}/{ours}.jsonl into {folder} by hand instead"
            ) from err
        names = getattr(getattr(rows, "features", {}).get(task.labels.column), "names", None) if task.labels else None
        if names and task.labels:
            (target / "labels.json").write_text(json.dumps({task.labels.column: list(names)}), encoding="utf-8")
        path = target / f"{ours}.jsonl"
        write_whole(path, partial(_write_rows, rows))
        written.append(path)
    return written


def _write_rows(rows: Iterable[Any], path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(dict(row), ensure_ascii=False) + "\n")


def _hub_loader() -> Any:
    try:
        from datasets import load_dataset  # type: ignore[import-not-found]
    except ImportError as err:
        raise ValueError("fetching needs the package datasets: pip install datasets") from err
    return load_dataset
