"""Which rows a run trains on, is tuned on and is tested on: a function of the folder, the sizes and one seed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_bench.data.folder import fingerprint, read_split, split_path
from llm_bench.tasks.task import TEST_SIZE, Task

TEST_SEED = 42  # test rows are the same for every data seed

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Split:
    """The rows of one data seed.

    Attributes:
        train: Rows to learn from.
        dev: Rows to choose by; never in ``train``.
        test: Looked at once, at the end.
        source: ``published`` where the folder has the few-shot split of that seed, else ``drawn``.
        overlap: Number of train and dev rows that are test rows as well, which published splits may have.
    """

    train: Rows
    dev: Rows
    test: Rows
    source: str
    overlap: int

    @property
    def fingerprint(self) -> str:
        """Of all rows, in order."""
        return fingerprint([*self.train, {}, *self.dev, {}, *self.test])


def few_shot(folder: Path, task: Task, seed: int, k: int = 16, test_size: int = TEST_SIZE) -> Split:
    """k rows a class to train on and k others for dev, as LM-BFF.

    The published split of that seed is taken where ``kshot/TASK/K-SEED/`` has it. Drawn ones are not LM-BFF's rows:
    those need its random generator and its order of the source.

    Raises:
        ValueError: If a class has fewer than 2k rows, or k is below 1.
        FileNotFoundError: If a split is missing.
    """
    _at_least_one("k", k)
    test = sample(read_split(folder, task, "test"), test_size, f"test/{TEST_SEED}")
    published = folder / "kshot" / task.name / f"{k}-{seed}"
    if published.is_dir():
        inside = published.parent
        as_task = _renamed(task, published.name)
        train, dev = (read_split(inside, as_task, name) for name in ("train", "validation"))
        return Split(train, dev, test, "published", _overlap([*train, *dev], test, task))
    assert task.labels is not None
    by_class: dict[str, Rows] = {name: [] for name in task.classes}
    for row in read_split(folder, task, "train"):
        by_class[row[task.labels.column]].append(row)
    train, dev = [], []
    for name, rows in by_class.items():
        if len(rows) < 2 * k:
            raise ValueError(
                f"{task.name}: class {name} has {len(rows)} training rows, k={k} for train and dev needs {2 * k}; "
                "lower k or use a larger training file"
            )
        chosen = sample(rows, 2 * k, f"{seed}/{name}")
        train += chosen[:k]
        dev += chosen[k:]
    return Split(train, dev, test, "drawn", _overlap([*train, *dev], test, task))


def many_shot(
    folder: Path, task: Task, seed: int, num_train: int = 1000, num_dev: int | None = None, test_size: int = TEST_SIZE
) -> Split:
    """Up to ``num_train`` training, ``num_dev`` dev (default: the task's) and ``test_size`` test rows.

    Dev rows come from ``validation`` where the folder has it, else from training rows that are not used.

    Raises:
        ValueError: If a size is below 1 or no row is left for dev.
        FileNotFoundError: If a split is missing.
    """
    num_dev = task.dev_size if num_dev is None else num_dev
    for name, size in (("num_train", num_train), ("num_dev", num_dev), ("test_size", test_size)):
        _at_least_one(name, size)
    test = sample(read_split(folder, task, "test"), test_size, f"test/{TEST_SEED}")
    pool = read_split(folder, task, "train")
    if split_path(folder, task.name, "validation") is not None:
        train = sample(pool, num_train, f"{seed}/train")
        dev = sample(read_split(folder, task, "validation"), num_dev, f"{seed}/dev")
    else:
        num_train = min(num_train, len(pool) - min(num_dev, len(pool) // 2))
        rows = sample(pool, num_train + num_dev, f"{seed}/train")
        train, dev = rows[:num_train], rows[num_train:]
    if not dev or not train:
        raise ValueError(f"{task.name} has {len(pool)} training rows and no validation split; too few for a dev set")
    return Split(train, dev, test, "drawn", _overlap([*train, *dev], test, task))


def sample(rows: Sequence[dict[str, Any]], count: int, key: str) -> Rows:
    """The first ``count`` rows (all, if fewer) in an order that depends on the key and the rows' places alone.

    A hash rather than a random generator: the same rows in every version of every library.
    """
    order = sorted(range(len(rows)), key=lambda i: hashlib.blake2b(f"{key}/{i}".encode(), digest_size=8).digest())
    return [rows[i] for i in order[:count]]


def _overlap(rows: Sequence[Mapping[str, Any]], test: Sequence[Mapping[str, Any]], task: Task) -> int:
    def content(row: Mapping[str, Any]) -> str:
        return fingerprint([{name: row[name] for name in task.fields}])

    seen = {content(row) for row in test}
    return sum(content(row) in seen for row in rows)


def _renamed(task: Task, name: str) -> Task:
    from dataclasses import replace

    return replace(task, name=name)


def _at_least_one(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
