"""The data folder: ``TASK/SPLIT.jsonl`` or ``.parquet`` in the Hugging Face schema, labels read by name.

Besides the splits train, validation and test there may be ``TASK/labels.json``, such as ``{"label": ["negative",
"positive"]}``, that says what the integers mean, and ``kshot/TASK/16-SEED/`` with published few-shot splits. Test is
the public labelled set, as MeZO has it (the Hub's validation split, for most tasks).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llm_bench.data.files import label_names, rows_of
from llm_bench.tasks.task import Labels, Task

SUFFIXES = (".jsonl", ".parquet")


def read_split(folder: Path, task: Task, split: str) -> list[dict[str, Any]]:
    """The rows of a split, each label replaced by its class's name.

    Args:
        folder: The data folder, or one with the same layout inside it.
        task: Says which columns are needed and what labels mean.
        split: ``train``, ``validation`` or ``test``.

    Raises:
        FileNotFoundError: If the folder or the split is missing.
        ValueError: If a row is damaged, lacks a column or has another type in it, its label is none of the task's, or
            no example can be made of it.
    """
    path = split_path(folder, task.name, split)
    if path is None:
        raise FileNotFoundError(
            f"no {split} split of {task.name} in {folder}: expected {task.name}/{split}.jsonl or .parquet; "
            f"`helene llm data fetch {task.name} --data {folder}` makes it where the Hub can be reached"
        )
    names = label_names(path, task.labels)
    rows = []
    for number, row in enumerate(rows_of(path), start=1):
        where = f"row {number} of {path}"
        missing = [name for name in task.fields if name not in row or row[name] is None]
        if missing:
            has = ", ".join(name for name in row if row[name] is not None) or "nothing"
            raise ValueError(
                f"{where} has no {', '.join(missing)}; {task.name} needs {', '.join(task.fields)}, the row has {has}"
            )
        if task.labels is not None:
            label = _label(row, task.labels, names, where)
            if label is None:
                continue
            row = {**row, task.labels.column: label}
        try:
            task.make(row)  # now, and not in the middle of a run
        except ValueError as err:
            raise ValueError(f"{where}: {err}") from err
        rows.append(row)
    if not rows:
        raise ValueError(f"{path} has no rows; fetch it again")
    return rows


def split_path(folder: Path, name: str, split: str) -> Path | None:
    """The file of a split, or None.

    Raises:
        FileNotFoundError: If there is no such folder at all.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no data folder {folder}; give the folder that holds {name}/train.jsonl")
    candidates = (folder / name / f"{split}{suffix}" for suffix in SUFFIXES)
    return next((path for path in candidates if path.is_file()), None)


def fingerprint(rows: Sequence[Mapping[str, Any]]) -> str:
    """Sixteen digits that two lists of rows share only if they are equal, order included."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row, sort_keys=True, ensure_ascii=False, default=str).encode())
        digest.update(b"\n")
    return digest.hexdigest()[:16]


def _label(row: Mapping[str, Any], labels: Labels, names: Sequence[str], where: str) -> str | None:
    """The class's name; None for a row without label where these are dropped."""
    value = row.get(labels.column)
    if isinstance(value, str) and value in labels.names:
        return value
    if isinstance(value, bool) and {"False", "True"} == set(labels.names):
        return str(value)
    if isinstance(value, int) and not isinstance(value, bool):
        if 0 <= value < len(names):
            return names[value]
        if value == -1 and labels.unlabelled:
            return None
    hint = "; -1 marks a hidden test set, use the public validation set instead" if value == -1 else ""
    raise ValueError(
        f"{where} has {labels.column}={value!r}; it must be one of {', '.join(labels.names)}, "
        f"or 0 to {len(names) - 1} in the order {', '.join(names)}{hint}"
    )
