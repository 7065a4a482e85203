"""Runs as data: one SQLite file of records, keyed by the hash of each run's config."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from helene.lab.runs import canonical
from helene.lab.runs.database import Database, is_sqlite
from helene.lab.runs.records import (
    EXPORT_LIMIT_BYTES,
    Record,
    StoreError,
    condition_in_words,
    config_key,
    digest,
    matches,
    read_jsonl,
    seal,
    write_jsonl,
)

__all__ = ["EXPORT_LIMIT_BYTES", "MergeReport", "Record", "Store", "StoreError", "config_key", "read_jsonl"]

_SELECT = (
    "SELECT r.key, r.experiment, r.config, r.result, p.json, {seal} "
    "FROM record r JOIN provenance p ON p.id = r.provenance"
)
_WITH_SEALS = _SELECT.format(seal="s.seal") + " LEFT JOIN seal s ON s.experiment = r.experiment AND s.key = r.key"


@dataclass(frozen=True)
class MergeReport:
    """What :meth:`Store.merge` did.

    Attributes:
        added: Records that were new.
        same: Records already here with an equal result (wall-clock apart).
        replaced: Records here with status ``error`` that gave way to a finished one.
        conflicts: Keys, as ``experiment/key``, finished on both sides with different results; this store's stays.
    """

    added: int
    same: int
    replaced: int
    conflicts: tuple[str, ...]


class Store:
    """A file of records with one writer and any number of readers; use it as a context manager.

    Each :meth:`put` is committed, synced to disk, before it returns: whatever happens next, it stays. The file is
    SQLite in WAL mode, which needs a local disk (not NFS). Each record has a checksum: one that no longer fits is
    damaged, and is left out with a warning, so that the next sweep runs it again.

    Args:
        path: The file; it and its folder are made when missing, unless ``read_only``.
        read_only: Open beside a writer, or where nothing may be written.

    Raises:
        StoreError: If the file is not a store, has another schema version, cannot be written, or another writer has
            it open.
    """

    def __init__(self, path: str | os.PathLike[str], *, read_only: bool = False) -> None:
        self.path, self.read_only = Path(path), read_only
        self._database = Database(self.path, read_only)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file and let the next writer in; harmless when called again."""
        self._database.close()

    def put(self, record: Record) -> None:
        """Write one record and commit it; one of the same experiment and key is replaced.

        Raises:
            StoreError: If the disk is full, the store is read-only or closed, or its file was deleted or replaced. What
                was there before stays.
            ValueError: If the record has no JSON form.
        """
        self._write([record])

    def _write(self, records: Iterable[Record]) -> None:
        rows = [
            (r.experiment, r.key, canonical.dumps(r.config), canonical.dumps(r.result), canonical.dumps(r.provenance))
            for r in records
        ]
        with self._database.transaction() as db:
            for experiment, key, config, result, provenance in rows:
                origin = digest(provenance)
                db.execute("INSERT OR IGNORE INTO provenance VALUES (?, ?)", (origin, provenance))
                db.execute(
                    "INSERT OR REPLACE INTO record VALUES (?, ?, ?, ?, ?)", (experiment, key, config, result, origin)
                )
                checksum = seal(experiment, key, config, result, provenance)
                db.execute("INSERT OR REPLACE INTO seal VALUES (?, ?, ?)", (experiment, key, checksum))

    def get(self, key: str, experiment: str | None = None) -> Record | None:
        """The record of that key, or None.

        Args:
            key: A ``config_key``.
            experiment: Needed only where several experiments ran the same config.

        Raises:
            StoreError: If several experiments have that key and none is named.
        """
        where, values = "r.key = ?", [key]
        if experiment is not None:
            where, values = where + " AND r.experiment = ?", [key, experiment]
        records = self._select(f"WHERE {where} ORDER BY r.experiment", values)
        if len(records) > 1:
            names = ", ".join(r.experiment for r in records)
            raise StoreError(f"key {key} occurs in several experiments ({names}); name one: get(key, experiment)")
        return records[0] if records else None

    def __contains__(self, key: object) -> bool:
        """Whether a key, or an (experiment, key) pair, has a record."""
        if isinstance(key, tuple):
            return self.get(key[1], key[0]) is not None
        return isinstance(key, str) and bool(self._select("WHERE r.key = ?", [key]))

    def __len__(self) -> int:
        with self._database.errors():
            return int(self._database.connection.execute("SELECT count(*) FROM record").fetchone()[0])

    def records(self, experiment: str | None = None) -> list[Record]:
        """All records, or one experiment's, sorted by key (then experiment)."""
        if experiment is None:
            return self._select("ORDER BY r.key, r.experiment", [])
        return self._select("WHERE r.experiment = ? ORDER BY r.key", [experiment])

    def experiments(self) -> dict[str, int]:
        """Names of the experiments, sorted, and how many records each has."""
        with self._database.errors():
            rows = self._database.connection.execute("SELECT experiment, count(*) FROM record GROUP BY 1 ORDER BY 1")
            return dict(rows.fetchall())

    def _select(self, tail: str, values: list[str]) -> list[Record]:
        with self._database.errors():
            has_seals = self._database.connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'seal'").fetchone()
            select = _WITH_SEALS if has_seals else _SELECT.format(seal="NULL")
            rows = self._database.connection.execute(f"{select} {tail}", values).fetchall()
        records = []
        for key, experiment, config, result, provenance, sealed in rows:
            if sealed is not None and sealed != seal(experiment, key, config, result, provenance):
                warnings.warn(
                    f"record {experiment}/{key} of {self.path} is damaged: its content does not fit its checksum "
                    f"{sealed}; it is left out, and the next sweep runs it again",
                    stacklevel=3,
                )
                continue
            parts = (canonical.loads(text) for text in (config, result, provenance))
            records.append(Record(key, experiment, *parts))
        return records

    def merge(self, path: str | os.PathLike[str]) -> MergeReport:
        """Take in the records of another store or of an exported JSONL file, all or none.

        A finished record is never overwritten: see :class:`MergeReport` for what happens to keys on both sides.

        Raises:
            StoreError: If the file is neither, or a line of it is damaged (the message names the line).
        """
        source = Path(path)
        self._database.check_apart(source)
        if is_sqlite(source):
            with Store(source, read_only=True) as other:
                incoming = other.records()
        else:
            incoming = read_jsonl(source)
        accepted: dict[tuple[str, str], Record] = {}  # a file of several exports may hold a key more than once
        same, replaced, conflicts = 0, 0, []
        for record in incoming:
            name = record.experiment, record.key
            mine = accepted.get(name) or self.get(record.key, record.experiment)
            if mine is None:
                accepted[name] = record
            elif mine.failed and not record.failed:
                accepted[name] = record
                replaced += 1
            elif record.failed or mine.comparable() == record.comparable():
                same += 1
            else:
                conflicts.append(f"{record.experiment}/{record.key}")
        self._write(accepted.values())
        return MergeReport(len(incoming) - same - replaced - len(conflicts), same, replaced, tuple(conflicts))

    def export_jsonl(
        self, path: str | os.PathLike[str], experiment: str, where: Mapping[str, Any] | None = None
    ) -> int:
        """Write an experiment's records, sorted by key, as JSONL; returns how many.

        Each distinct provenance is one line, ``{"id": ..., "provenance": {...}}``, ahead of the records, which name
        it by its id. The file appears whole or not at all. :func:`read_jsonl` and :meth:`merge` read it.

        Args:
            path: The file to write.
            experiment: The experiment.
            where: Only records whose config has these values.

        Raises:
            StoreError: If there is no such record, the file cannot be written, or it would pass 1 MiB, the most that
                is committed as one file: the message says by which config entry to split.
        """
        self._database.check_apart(path)
        there = self.records(experiment)
        records = [r for r in there if matches(r.config, where)]
        asked = f"{experiment!r}{condition_in_words(where)}"
        if there and (unknown := [name for name in where or () if not any(name in r.config for r in there)]):
            settings = ", ".join(sorted({name for r in there for name in r.config}))
            raise StoreError(
                f"no record of experiment {experiment!r} has a setting {unknown[0]!r}; there are {settings}"
            )
        if not records:
            known = ", ".join(self.experiments()) or "none"
            raise StoreError(f"{self.path} has no record of experiment {asked}; it holds experiments: {known}")
        write_jsonl(path, records, f"records of {asked}")
        return len(records)
