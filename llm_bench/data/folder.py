"""The data folder: ``TASK/SPLIT.jsonl`` or ``.parquet`` in the Hugging Face schema, labels read by name.

Besides the splits train, validation and test there may be ``TASK/labels.json``, such as ``{"label": ["negative",
"positive"]}``, that says what the integers mean, and ``kshot/TASK/16-SEED/`` with published few-shot splits. Test is
the public labelled set, as MeZO has it (the Hub's validation split, for most tasks).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

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
        ValueError: If a row is damaged, lacks a column, its label is none of the task's, or no example can be made of
            it.
    """
    path = split_path(folder, task.name, split)
    if path is None:
        raise FileNotFoundError(
            f"no {split} split of {task.name} in {folder}: expected {task.name}/{split}.jsonl or .parquet; "
            f"`helene llm data fetch {task.name} --data {folder}` makes it where the Hub can be reached"
        )
    names = _label_names(path, task.labels)
    rows = []
    for number, row in enumerate(_rows(path), start=1):
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


def _text(value: Any, where: str) -> Any:
    """A value of a Parquet file, its bytes as the text that some writers store as BINARY."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as err:
            raise ValueError(f"{where} is bytes that are no UTF-8 text; store the column as strings") from err
    if isinstance(value, list):
        return [_text(entry, where) for entry in value]
    if isinstance(value, dict):
        return {name: _text(entry, where) for name, entry in value.items()}
    return value


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    if path.suffix == ".parquet":
        import pyarrow.parquet as parquet

        for number, row in enumerate(parquet.read_table(path).to_pylist(), start=1):
            yield {name: _text(value, f"{name} in row {number} of {path}") for name, value in row.items()}
        return
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                try:
                    row = json.loads(line)
                except json.JSONDecodeError as err:
                    raise ValueError(f"line {number} of {path} is not JSON ({err.msg}); fetch the file again") from err
                if not isinstance(row, dict):
                    raise ValueError(f"line {number} of {path} is a {type(row).__name__}; each must be an object")
                yield row


def _label_names(path: Path, labels: Labels | None) -> tuple[str, ...]:
    """What the integers mean: as the data say, else in the order of the Hugging Face data set."""
    if labels is None:
        return ()
    said = _names_in_json(path, labels) or _names_in_parquet(path, labels)
    if said is None:
        return labels.names
    if set(said) != set(labels.names):
        raise ValueError(
            f"{path} names the classes of {labels.column!r} {', '.join(map(str, said))}; this task's are "
            f"{', '.join(labels.names)}, so it is another data set or needs its own task file"
        )
    return tuple(said)


def _names_in_json(path: Path, labels: Labels) -> list[str] | None:
    beside = path.with_name("labels.json")
    return json.loads(beside.read_text(encoding="utf-8")).get(labels.column) if beside.is_file() else None


def _names_in_parquet(path: Path, labels: Labels) -> list[str] | None:
    """The ClassLabel names that the `datasets` library leaves in a Parquet file's metadata."""
    if path.suffix != ".parquet":
        return None
    import pyarrow.parquet as parquet

    metadata = parquet.read_schema(path).metadata or {}
    features = json.loads(metadata.get(b"huggingface", b"{}")).get("info", {}).get("features", {})
    return features.get(labels.column, {}).get("names")


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
