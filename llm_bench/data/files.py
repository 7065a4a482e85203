"""What stands in data files: rows, and the classes' names beside them or in a Parquet file's metadata."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from helene.inputs.files import not_utf8, read_text
from llm_bench.tasks.task import Labels


def rows_of(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a JSONL or Parquet file.

    Raises:
        ValueError: If the file, or a line of it, is damaged or no text; file, and line or row, are named.
    """
    if path.suffix == ".parquet":
        for number, row in enumerate(_from_parquet(path, "read_table").to_pylist(), start=1):
            yield {name: _text(value, f"{name} in row {number} of {path}") for name, value in row.items()}
        return
    with path.open(encoding="utf-8-sig") as file:
        try:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield _object(line, f"line {number} of {path}")
        except UnicodeDecodeError as err:
            raise not_utf8(path, err) from err


def label_names(path: Path, labels: Labels | None) -> tuple[str, ...]:
    """What the integers mean: as the data say, else in the order of the Hugging Face data set.

    Raises:
        ValueError: If what the data say is damaged, or names other classes than the task's, or one twice.
    """
    if labels is None:
        return ()
    beside = path.with_name("labels.json")
    names, source = (_names_in_json(beside, labels), beside) if beside.is_file() else (None, path)
    if names is None:
        names, source = _names_in_parquet(path, labels), path
    if names is None:
        return labels.names
    if not isinstance(names, list) or sorted(map(str, names)) != sorted(labels.names):
        shown = ", ".join(map(str, names)) if isinstance(names, list) else repr(names)
        raise ValueError(
            f"{source} names the classes of {labels.column!r} {shown}; this task's are {', '.join(labels.names)}, each "
            "once, so it is another data set or needs its own task file"
        )
    return tuple(names)


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as err:
        reason = err.msg if isinstance(err, json.JSONDecodeError) else str(err)
        raise ValueError(f"{where} is not JSON ({reason}); fetch the file again") from err
    if not isinstance(row, dict):
        raise ValueError(f"{where} is a {type(row).__name__}; each must be an object")
    return row


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


def _from_parquet(path: Path, read: str) -> Any:
    """What a function of pyarrow.parquet reads from a file."""
    import pyarrow
    from pyarrow import parquet

    try:
        return getattr(parquet, read)(path)
    except (pyarrow.ArrowException, OSError) as err:
        raise ValueError(f"{path} is damaged, or no Parquet file ({_first_line(err)}); fetch the file again") from err


def _names_in_json(beside: Path, labels: Labels) -> Any:
    try:
        names = json.loads(read_text(beside))
    except json.JSONDecodeError as err:
        raise ValueError(f'{beside} is not JSON ({err}); it reads {{"{labels.column}": [names]}}') from err
    if not isinstance(names, dict):
        raise ValueError(f'{beside} is a {type(names).__name__}; it reads {{"{labels.column}": [names]}}')
    return names.get(labels.column)


def _names_in_parquet(path: Path, labels: Labels) -> Any:
    """The ClassLabel names that the `datasets` library leaves in a Parquet file's metadata."""
    if path.suffix != ".parquet":
        return None
    metadata = _from_parquet(path, "read_schema").metadata or {}
    try:
        features = json.loads(metadata.get(b"huggingface", b"{}")).get("info", {}).get("features", {})
        return features.get(labels.column, {}).get("names")
    except (ValueError, AttributeError) as err:
        raise ValueError(f"the metadata 'huggingface' of {path} is damaged ({err}); fetch the file again") from err


def _first_line(err: Exception) -> str:
    return (str(err).splitlines() or [type(err).__name__])[0]
